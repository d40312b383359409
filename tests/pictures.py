"""Draw a fleet and the cutover of a real move for the docs: `make pictures`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from shardctl.demo import tour
from shardctl.sandbox import poolers

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDTH = 760
STYLE = """<style>
svg { --ground: #fbfaf8; --ink: #1c1b19; --soft: #65625c; --line: #d9d5cd; --wait: #d92d20;
  --a: #2563b8; --b: #b45309; --c: #147a4b; --d: #7c3aad; font: 14px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --ground: #1e1e1f; --ink: #f0eeea; --soft: #a8a49c;
  --line: #454547; --wait: #ff8a80; --a: #7db2f5; --b: #f2ac57; --c: #67cf9b; --d: #c99bf0; } }
text { fill: var(--ink); } .soft { fill: var(--soft); } .ground { fill: var(--ground); }
.box, .arrow { fill: none; stroke: var(--line); stroke-width: 1.5; } .bar { fill: var(--a); }
.arrow { stroke: var(--soft); } .wait { fill: var(--wait); } .pause { opacity: .16; }
</style>"""


def fleet(status: dict[str, Any]) -> str:
    """Draw what `shardctl status -o json` reports: which shards each node owns."""
    nodes = status["nodes"]
    shards = sorted(shard for node in nodes for shard in node["owned"])
    height = 40 + 62 * len(nodes)
    middle = height // 2
    parts = [
        _box(20, middle - 26, 150, "application", "key 31341 → shard 5"),
        _box(220, middle - 26, 170, "PgBouncer", "an alias for each shard"),
        f'<path class="arrow" d="M170 {middle}H220"/>',
    ]
    for row, node in enumerate(nodes):
        y, name, owned = 20 + 62 * row, node["name"], len(node["owned"])
        curve = f"M390 {middle}C420 {middle} 420 {y + 26} 450 {y + 26}"
        parts.append(f'<path class="arrow" d="{curve}"/>')
        parts.append(_box(450, y, 290, f"node {name}", f"{owned} shards" if owned else "spare"))
        for place, shard in enumerate(shards):
            x, mine = 566 + 21 * place, shard in node["owned"]
            look = f'style="fill: var(--{name})"' if mine else 'class="box"'
            parts.append(f'<rect x="{x}" y="{y + 16}" width="17" height="20" rx="3" {look}/>')
            if mine:
                parts.append(f'<text class="ground" x="{x + 5}" y="{y + 31}">{shard}</text>')
    return _svg(height, "A fleet: the application, its pooler, and the shards of each node", parts)


def cutover(move: dict[str, Any]) -> str:
    """Draw the cutover of `shardctl moves show -o json`, whose sub-steps are in the journal."""
    steps = {one["name"]: one for one in move["steps"]}
    names = [name for name in steps if name.startswith("cutover.")]
    within = names[names.index("cutover.pause") : names.index("cutover.serve") + 1]
    shown = [steps[name] for name in within if steps[name]["elapsed_ms"] >= 1]
    began, resumed = _ms(shown[0]), _ms(steps["cutover.route"], ended=True)
    pause_ms, height = move["report"]["pause_ms"], 128 + 28 * len(shown)
    left, scale = 110, (WIDTH - 190) / (_ms(shown[-1], ended=True) - began)
    how = {"stream": "streamed to", "clone": "cloned onto"}[move["method"]]
    title = f"Cutover of {len(move['shards'])} shards of node {move['source']}, {how} node"
    title += f" {move['target']}"
    before_s = (began - _ms(move["steps"][0])) / 1000
    before = f"after {before_s:.0f} s of copying and preparing, in which clients read and write"
    pause = f"paused for clients of these shards: {pause_ms:.0f} ms"
    size = f'width="{pause_ms * scale:.1f}" height="{height - 106}"'
    band = left + (resumed - pause_ms - began) * scale
    parts = [
        f'<text x="20" y="30" font-weight="600">{escape(title)}</text>',
        f'<text class="soft" x="20" y="52">{before}</text>',
        f'<rect class="wait pause" x="{band:.1f}" y="66" rx="4" {size}/>',
        f'<text class="wait" x="{band:.1f}" y="{height - 18}">{pause}</text>',
    ]
    for row, step in enumerate(shown):
        y, x = 74 + 28 * row, left + (_ms(step) - began) * scale
        width, took = max(2.0, step["elapsed_ms"] * scale), f"{step['elapsed_ms']:.0f} ms"
        bar = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" rx="3"'
        name = escape(step["name"].removeprefix("cutover.").replace("_", " "))
        parts.append(f'<text x="20" y="{y + 15}">{name}</text><rect class="bar" {bar}/>')
        parts.append(f'<text class="soft" x="{x + width + 6:.1f}" y="{y + 15}">{took}</text>')
    return _svg(height, f"{title}; {pause}", parts)


def _ms(step: dict[str, Any], *, ended: bool = False) -> float:
    began = datetime.fromisoformat(step["started"]).timestamp() * 1000
    return began + (step["elapsed_ms"] if ended else 0)


def _box(x: int, y: int, width: int, title: str, below: str) -> str:
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="52" rx="8"/>'
        f'<text x="{x + 12}" y="{y + 22}" font-weight="600">{escape(title)}</text>'
        f'<text class="soft" x="{x + 12}" y="{y + 41}" font-size="12">{escape(below)}</text>'
    )


def _svg(height: int, label: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    ground = '<rect class="ground" width="100%" height="100%" rx="10"/>'
    lines = [f'{head} aria-label="{escape(label)}">', STYLE, ground, *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Start a fleet, move shards, and draw both; remove the fleet."""
    with tempfile.TemporaryDirectory(prefix="shardctl-pictures-") as name:
        place = Path(name)
        place.chmod(0o755)  # root's servers run as another user
        topology = tour.lay_out(place, poolers=poolers.program() is not None)
        os.environ |= {"SHARDCTL_TOPOLOGY": str(topology), "XDG_STATE_HOME": name}
        try:
            _shardctl("sandbox", "up")
            _shardctl("init", "--yes")
            status = json.loads(_shardctl("status", "-o", "json"))
            _shardctl("move-shards", "2-3", "--to", "b", "--yes")
            [move] = json.loads(_shardctl("moves", "list", "-o", "json"))["moves"]
            shown = json.loads(_shardctl("moves", "show", move["id"], "-o", "json"))
        finally:
            _shardctl("sandbox", "down", "--delete", "--yes")
    (IMAGES / "fleet.svg").write_text(fleet(status), encoding="utf-8")
    (IMAGES / "cutover.svg").write_text(cutover(shown), encoding="utf-8")


def _shardctl(*words: str) -> str:
    command = [sys.executable, "-m", "shardctl", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
