"""Examples of every command, for `--help`, the reference and the man page."""

from __future__ import annotations

EXAMPLES = {
    "shardctl": (
        ("shardctl demo", "Show the whole story on a throw-away fleet"),
        ("shardctl sandbox new --shards 8 --nodes 2", "Start with local servers"),
        ("shardctl status", "Show the fleet that ./topology.yaml describes"),
    ),
    "shardctl init": (
        ("shardctl init --dry-run", "Show what is missing, change nothing"),
        ("shardctl init", "Show the plan, ask, apply it"),
        ("shardctl init --yes --lock-wait 10m", "In a script: wait for a running command"),
    ),
    "shardctl migrate": (
        ("shardctl migrate --dry-run --detailed-exitcode", "In CI: exit 2 if one is pending"),
        ("shardctl migrate", "Show pending migrations, ask, run them"),
        ("shardctl migrate --yes --lock-timeout 500ms --attempts 20", "Retry short lock waits"),
    ),
    "shardctl verify": (
        ("shardctl verify", "Compare topology, databases and poolers"),
        ("shardctl verify --check poolers --strict", "Run one check; exit 1 for warnings too"),
        ("shardctl verify --deep -o json", "Read every row; print JSON"),
    ),
    "shardctl status": (
        ("shardctl status", "Show the fleet once"),
        ("shardctl status --watch 2s", "Show it every two seconds, until Ctrl-C"),
        ("shardctl status --sample 0 -o json", "Print JSON at once, without transaction rates"),
    ),
    "shardctl shards": (
        ("shardctl shards list --sort size --top 10", "List the ten largest shards"),
        ("shardctl shards list -o csv --sample 0", "List all for a spreadsheet, without load"),
    ),
    "shardctl shards list": (
        ("shardctl shards list --sort size --top 10", "List the ten largest shards"),
        ("shardctl shards list --sort tps --sample 10s --node a", "Find a hot shard of node a"),
        ("shardctl shards list -o csv --sample 0", "List all for a spreadsheet, without load"),
    ),
    "shardctl events": (
        ("shardctl events", "List what changed in the last day"),
        ("shardctl events --since 2h --node a -o json", "The last two hours of node a, as JSON"),
        ("shardctl events --follow", "Print what other operators change, as they do"),
    ),
    "shardctl metrics": (
        ("shardctl metrics", "Print all figures"),
        (
            "shardctl metrics --textfile /var/lib/prometheus/node-exporter",
            "From cron, for node_exporter",
        ),
    ),
    "shardctl pgbouncer": (
        ("shardctl pgbouncer diff", "Show which files differ"),
        ("shardctl pgbouncer apply", "Bring all poolers up to date"),
    ),
    "shardctl pgbouncer render": (
        ("shardctl pgbouncer render", "Print the aliases of all poolers"),
        ("shardctl pgbouncer render p1", "Print those of pooler p1"),
    ),
    "shardctl pgbouncer diff": (
        ("shardctl pgbouncer diff", "Show what differs in all files; exit 1 if anything does"),
        ("shardctl pgbouncer diff p1 -o json", "For pooler p1, as JSON"),
    ),
    "shardctl pgbouncer apply": (
        ("shardctl pgbouncer apply --dry-run", "Show what would be written"),
        ("shardctl pgbouncer apply", "Show the plan, ask, write and RELOAD"),
        ("shardctl pgbouncer apply p1 --force --yes", "Replace a file that was edited by hand"),
    ),
    "shardctl move-shards": (
        ("shardctl move-shards 2-3 --to c --dry-run", "Check everything, predict the pause"),
        ("shardctl move-shards 5 --to a --max-pause 2s", "Stream a shard to a node that serves"),
        (
            "shardctl move-shards --from a --half --to c --max-rate 50M",
            "Split a full node by a clone",
        ),
    ),
    "shardctl rebalance": (
        ("shardctl rebalance plan", "Show which shards should go where, change nothing"),
        ("shardctl rebalance apply", "Show the plan, ask, carry it out"),
    ),
    "shardctl rebalance plan": (
        ("shardctl rebalance plan --by tps --sample 1m", "Balance the load of the next minute"),
        ("shardctl rebalance plan --node-weight c=2 --out plan.json", "Save it, to review it"),
    ),
    "shardctl rebalance apply": (
        ("shardctl rebalance apply --plan plan.json", "Carry out a plan that was saved"),
        ("shardctl rebalance apply --max-moves 1 --yes", "Only the move that improves most"),
    ),
    "shardctl rebalance status": (
        ("shardctl rebalance status", "Show which of its moves are finished"),
        ("shardctl rebalance status -o json", "The same for a program"),
    ),
    "shardctl rebalance pause": (
        ("shardctl rebalance pause", "Let it stop after the move that runs"),
        ("shardctl rebalance pause --yes", "In a script"),
    ),
    "shardctl rebalance resume": (
        ("shardctl rebalance resume --dry-run", "Show which moves are left"),
        ("shardctl rebalance resume", "Go on after an interruption"),
    ),
    "shardctl node": (
        ("shardctl node add c --host 10.0.0.3", "Let a new server join the fleet"),
        ("shardctl node drain b", "Move all shards of node b to the other nodes"),
        ("shardctl node remove b", "Remove it when it is empty"),
    ),
    "shardctl node add": (
        ("shardctl node add c --host 10.0.0.3 --dry-run", "Check a new server"),
        (
            "shardctl node add c --host 10.0.0.3 --with 'ssh: {user: shardctl}'",
            "Add it, with another key of the file",
        ),
    ),
    "shardctl node remove": (
        ("shardctl node remove b --dry-run", "Show whether node b is empty, and the proof"),
        ("shardctl node remove b --gone", "Remove it after its server was destroyed"),
    ),
    "shardctl node drain": (
        ("shardctl node drain b --dry-run", "Show which nodes get its shards"),
        ("shardctl node drain b --max-rate 50M", "Empty it slowly"),
    ),
    "shardctl moves": (
        ("shardctl moves list", "List all moves"),
        ("shardctl moves resume", "Continue the unfinished move"),
    ),
    "shardctl moves list": (
        ("shardctl moves list", "List all moves, the newest first"),
        ("shardctl moves list -o csv", "For a spreadsheet"),
    ),
    "shardctl moves show": (
        ("shardctl moves show", "Show the newest move and its steps"),
        ("shardctl moves show 5f3a9c1e -o json", "Show one move as JSON"),
    ),
    "shardctl moves resume": (
        ("shardctl moves resume", "Continue the unfinished move"),
        ("shardctl moves resume 5f3a9c1e --max-pause 5s --yes", "Give its cutover more time"),
        ("shardctl moves resume --terminate", "End transactions that block its cutover"),
    ),
    "shardctl moves abort": (
        ("shardctl moves abort --dry-run", "Check whether the move can be aborted"),
        ("shardctl moves abort", "Abort it and delete its copy"),
        ("shardctl moves abort --target-destroyed", "After the loss of the target's disk"),
    ),
    "shardctl moves reverse": (
        ("shardctl moves reverse 5f3a9c1e --dry-run", "Check whether the move can be reversed"),
        ("shardctl moves reverse 5f3a9c1e", "Give its shards back, with what came since"),
    ),
    "shardctl moves finish": (
        ("shardctl moves finish 5f3a9c1e --dry-run", "Show what is kept for a reverse"),
        ("shardctl moves finish 5f3a9c1e", "Keep nothing for a reverse any more"),
    ),
    "shardctl moves doctor": (
        ("shardctl moves doctor --dry-run", "Show what moves have left behind"),
        ("shardctl moves doctor", "Clear it, when you have confirmed"),
        ("shardctl moves doctor --dry-run -o json", "The same for programs"),
    ),
    "shardctl prune": (
        ("shardctl prune --dry-run", "Show which schemas may be dropped, and why not"),
        ("shardctl prune", "Drop the schemas that are due"),
        ("shardctl prune --now --yes", "Drop schemas before `retain` has passed, too"),
    ),
    "shardctl rows": (
        ("shardctl rows misplaced", "Search all shards"),
        ("shardctl rows misplaced --sql > move.sql", "Write what moves the rows that it lists"),
    ),
    "shardctl rows misplaced": (
        ("shardctl rows misplaced", "Search every table of every shard"),
        ("shardctl rows misplaced 2-3 --table likes -o csv", "Search one table in two shards"),
        ("shardctl rows misplaced --sql --limit 1000", "Write a script that moves them"),
    ),
    "shardctl repack": (
        ("shardctl repack --dry-run", "Show which tables are bloated"),
        ("shardctl repack 2-3 --min-bloat 30", "Repack the worst tables of two shards"),
        ("shardctl repack --yes --recent 1d --wait-timeout 10m", "In a nightly job"),
    ),
    "shardctl read-only": (
        ("shardctl read-only on 2-3", "Refuse writes to two shards"),
        ("shardctl read-only off 2-3", "Accept writes again"),
    ),
    "shardctl read-only on": (
        ("shardctl read-only on 2-3", "Refuse writes to two shards"),
        ("shardctl read-only on --node a --wait 2m --yes", "Refuse writes to all shards of node a"),
    ),
    "shardctl read-only off": (
        ("shardctl read-only off 2-3", "Accept writes to two shards again"),
        ("shardctl read-only off --node a --yes", "For all shards of node a"),
    ),
    "shardctl sql": (
        ("shardctl sql 'SELECT count(*) FROM photos_by_user'", "Count in every shard"),
        ("shardctl sql --nodes 'SHOW server_version' -o csv", "Run it on every node"),
        ("shardctl sql --write --file fix.sql --shards 2-3 --timeout 30s", "Change two shards"),
    ),
    "shardctl run": (
        ("shardctl run 'df -h /'", "On every machine"),
        ("shardctl run 'cat $SHARDCTL_DATA_DIRECTORY/PG_VERSION' --on nodes", "For every node"),
        ("shardctl run 'uptime' --on a,p1 --timeout 10s --yes", "For node a and pooler p1"),
    ),
    "shardctl hosts": (
        ("shardctl hosts", "Show how hosts are reached"),
        ("shardctl hosts -o csv", "For a spreadsheet"),
        ("shardctl hosts check", "Test every host"),
    ),
    "shardctl hosts check": (
        ("shardctl hosts check", "Test SSH, sudo, programs, disks and clocks"),
        ("shardctl hosts check -o json", "Print the results as JSON"),
    ),
    "shardctl route": (
        ("shardctl route 31341", "Find the rows of key 31341"),
        ("shardctl route --id 11637205501278089 -o json", "Find the row of an id"),
        ("shardctl route --offline 31341 alice", "Use only the topology file"),
    ),
    "shardctl decode-id": (
        ("shardctl decode-id 11637205501278089", "Show when and where an id was made"),
        ("shardctl decode-id -o csv < ids.txt", "Decode many ids, for a spreadsheet"),
    ),
    "shardctl encode-id": (
        ("shardctl encode-id --time 2026-01-01", "Print the smallest id since that time"),
        ("shardctl encode-id --time 2026-01-01T12:00Z --shard 5", "Print the smallest of shard 5"),
    ),
    "shardctl topology": (
        ("shardctl topology check", "Read the file and list its problems"),
        ("shardctl topology schema", "Print its JSON Schema"),
    ),
    "shardctl topology check": (
        ("shardctl topology check", "Check ./topology.yaml"),
        ("shardctl topology check --topology new.yaml", "Check another file"),
    ),
    "shardctl topology diff": (
        ("shardctl topology diff", "Show shards that have another owner than in the file"),
        ("shardctl topology diff -o json", "For programs; exit code 1 if there are any"),
    ),
    "shardctl topology pull": (
        ("shardctl topology pull --dry-run", "Show what would change in the file"),
        ("shardctl topology pull", "Write the present owners into an old file"),
    ),
    "shardctl topology schema": (
        ("shardctl topology schema", "Print the file's JSON Schema"),
        ("shardctl topology schema > topology.schema.json", "Keep it for an editor"),
    ),
    "shardctl sandbox": (
        ("shardctl sandbox new --shards 8 --nodes 2 --spare 1", "Write a topology"),
        ("shardctl sandbox up", "Start its servers"),
    ),
    "shardctl sandbox new": (
        ("shardctl sandbox new --shards 8 --nodes 2", "Write ./topology.yaml"),
        ("shardctl sandbox new --shards 512 --nodes 4 --spare 2 --port 7100", "Write a larger one"),
    ),
    "shardctl sandbox up": (
        ("shardctl sandbox up", "Start the nodes that own shards, and the poolers"),
        ("shardctl sandbox up --dry-run", "Show what would be started"),
    ),
    "shardctl sandbox down": (
        ("shardctl sandbox down", "Stop the servers, keep their data"),
        ("shardctl sandbox down --delete", "Stop them and remove their data"),
    ),
    "shardctl sandbox status": (
        ("shardctl sandbox status", "Show which servers run"),
        ("shardctl sandbox status -o json", "Print it as JSON"),
    ),
    "shardctl sandbox traffic": (
        ("shardctl sandbox traffic", "Load every shard for 30 s, check every row"),
        ("shardctl sandbox traffic --seconds 10m --clients 16", "As long as a move may take"),
        ("shardctl sandbox traffic --connect --logins 200", "With a login for each operation"),
    ),
    "shardctl demo": (
        ("shardctl demo", "Show the story, remove the servers"),
        ("shardctl demo --keep", "Keep the servers running"),
    ),
}
"""For each command, by its full name: what to type, and its purpose."""


def of(command: str) -> str:
    """Return the examples of a command as text for its help; empty if it has none."""
    lines = [f"  # {purpose}\n  {typed}" for typed, purpose in EXAMPLES.get(command, ())]
    return "\n".join(["Examples:", *lines]) if lines else ""
