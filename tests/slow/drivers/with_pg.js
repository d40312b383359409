// node-postgres needs no setting; its pool sends nothing when a client is released.
const { Pool } = require("pg");
const [host, port, user, database] = process.argv.slice(2);
const FENCED = new Set(["42P01", "3F000", "42501"]);
const pools = {};
let ended = false;
process.stdin.on("data", () => { ended = true; }).on("end", () => { ended = true; });

function execute(alias, statement, given = []) {
  pools[alias] ??= new Pool({ host, port: Number(port), user, database: alias, max: 2 });
  return pools[alias].query(statement, given);
}

async function work() {
  let node = "a";
  for (let token = 1; !ended; token++) {
    await execute("shard2", "INSERT INTO writes (token) VALUES ($1)", [token]);
    console.log(2, token);
    const until = Date.now() + 20000;
    for (;;) {
      const alias = `${database}_${node}`;
      try {
        await execute(alias, "INSERT INTO shard3.writes (token) VALUES ($1)", [token]);
        break;
      } catch (error) {
        if (!FENCED.has(error.code) || Date.now() > until) throw error;
      }
      await new Promise((done) => setTimeout(done, 10));
      const found = await execute(alias, "SELECT node FROM shardctl.map WHERE shard = 3");
      node = found.rows[0].node;
    }
    console.log(3, token);
    await new Promise((done) => setTimeout(done, 10));
  }
  await Promise.all(Object.values(pools).map((pool) => pool.end()));
}

work().catch((error) => { console.error(error); process.exit(1); });
