// Without this file all works but the strip, the chart and the notice of new photos.
const $ = (selector, inside = document) => inside.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const colour = (node) => `var(--${"abcd"[(node.charCodeAt(0) - 97) % 4] ?? "a"})`;
const pauses = [], requests = [];

function strip({ nodes, moves }) {
  const all = nodes.flatMap((node) => node.owned).sort((one, two) => one - two);
  const moving = (shard, target) => moves.some((move) => move.shards.includes(shard) && (target ?? move.target) === move.target);
  $("#nodes").innerHTML = nodes.map(({ name, state, owned }) => {
    const kind = (shard) => owned.includes(shard) ? (moving(shard) ? "here leaves" : "here") : moving(shard, name) ? "comes" : "";
    const cells = all.map((shard) => `<i class="${kind(shard)}" title="shard ${shard}"></i>`).join("");
    const has = state === "up" ? `${owned.length}<small> shards</small>` : owned.length ? state : "spare";
    return `<div id="node-${name}" class="of" style="--of: ${colour(name)}"><span><b>${name}</b> <span>${has}</span></span><div aria-hidden="true">${cells}</div></div>`;
  }).join("");
  const [move] = moves;
  $("#state").textContent = move ? `${move.shards.length} shards ${move.source} → ${move.target}: ${move.step ?? "begins"}` : `${all.length} shards, live`;
  for (const row of $$("[data-shard]")) {
    const node = nodes.find(({ owned }) => owned.includes(Number(row.dataset.shard)));
    if (node) Object.assign($(".node", row), { textContent: node.name }).style.setProperty("--of", colour(node.name));
  }
}

function chart() {
  const now = Date.now(), x = (at) => 300 - (now - at) / 200, y = (ms) => 84 - 26 * Math.log10(Math.min(Math.max(ms, 1), 1500));
  while (requests.length && requests[0].at < now - 60000) requests.shift();
  const bands = pauses.filter((pause) => pause.at > now - 60000).map(({ at, ms }) => `<rect x="${x(at) - 1}" y="0" width="${ms / 200 + 2}" height="86"/>`);
  const lines = [1, 10, 100, 1000].map((ms) => `<line x2="300" y1="${y(ms)}" y2="${y(ms)}"/><text y="${y(ms) - 2}">${ms} ms</text>`);
  const dots = requests.map(({ at, ms, failed }) => `<circle r="1.7" cx="${x(at)}" cy="${y(ms)}" ${failed ? "class=failed" : ""}/>`);
  $("#chart").innerHTML = [...bands, ...lines, ...dots].join("");
  const sorted = requests.map(({ ms }) => ms).sort((one, two) => one - two);
  if (sorted.length) $("#latency").textContent = `median ${sorted[sorted.length >> 1].toFixed(0)} ms, longest ${sorted.at(-1).toFixed(0)} ms`;
}

async function probe() { // a question to all shards of the feed; the next one when it is answered
  const at = Date.now(), began = performance.now(), newest = $("#news")?.dataset.newest;
  const answer = await fetch(`${$("#chart").dataset.probe}?after=${newest ?? 0}`).catch(() => null);
  requests.push({ at, ms: performance.now() - began, failed: !answer?.ok });
  if (answer?.ok && newest && (await answer.json()).newer) $("#news").classList.add("some");
  chart();
  setTimeout(probe, document.hidden ? 5000 : 200);
}

new EventSource($("#nodes").dataset.events).onmessage = ({ data }) => {
  const fleet = JSON.parse(data), last = fleet.pauses.at(-1);
  strip(fleet);
  pauses.splice(0, pauses.length, ...fleet.pauses);
  if (last) $("#pause").innerHTML = `${last.shards.length} shards, ${last.source} → ${last.target}: paused for <b>${last.ms.toFixed(0)} ms</b>.`;
};
if ($("#chart")) probe();
for (const button of $$("[data-name]")) button.onclick = () => { $("#id_username").value = button.dataset.name; $("#id_password").value = "photos"; $(".sign .main").click(); };
