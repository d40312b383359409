"""Examples of every command, for `--help`, the reference and the man page."""

from __future__ import annotations

EXAMPLES = {
    "shardctl demo": "Show the story, remove the servers",
    "shardctl sandbox new --shards 8 --nodes 2": "Write ./topology.yaml",
    "shardctl status": "Show the fleet once",
    "shardctl sandbox up": "Start the nodes that own shards, and the poolers",
    "shardctl sandbox down": "Stop the servers, keep their data",
    "shardctl sandbox status": "Show which servers run",
    "shardctl sandbox traffic": "Load every shard for 30 s, check every row",
    "shardctl sandbox down --delete": "Stop them and remove their data",
    "shardctl sandbox traffic --seconds 10m --clients 16": "As long as a move may take",
    "shardctl demo --keep": "Keep the servers running",
    "shardctl status --watch 2s": "Show it every two seconds, until Ctrl-C",
    "shardctl init --dry-run": "Show what is missing, change nothing",
    "shardctl init": "Show the plan, ask, apply it",
    "shardctl init --yes --lock-wait 10m": "In a script: wait for a running command",
    "shardctl migrate --dry-run --detailed-exitcode": "In CI: exit 2 if one is pending",
    "shardctl migrate --yes --lock-timeout 500ms --attempts 20": "Retry short lock waits",
    "shardctl verify": "Compare topology, databases and poolers",
    "shardctl verify --deep -o json": "Read every row; print JSON",
    "shardctl shards list --sort size --top 10": "List the ten largest shards",
    "shardctl shards list --sort tps --sample 10s --node a": "Find a hot shard of node a",
    "shardctl events": "List what changed in the last day",
    "shardctl events --follow": "Print what other operators change, as they do",
    "shardctl metrics": "Print all figures",
    "shardctl metrics --textfile /var/lib/prometheus/node-exporter": "From cron, for node_exporter",
    "shardctl pgbouncer render": "Print the aliases of all poolers",
    "shardctl pgbouncer diff": "Show what differs in all files; exit 1 if anything does",
    "shardctl pgbouncer apply --dry-run": "Show what would be written",
    "shardctl pgbouncer apply p1 --force --yes": "Replace a file that was edited by hand",
    "shardctl move-shards 2-3 --to c --dry-run": "Check everything, predict the pause",
    "shardctl move-shards 5 --to a --max-pause 2s": "Stream a shard to a node that serves",
    "shardctl move-shards --from a --half --to c --max-rate 50M": "Split a full node by a clone",
    "shardctl rebalance plan --by tps --sample 1m": "Balance the load of the next minute",
    "shardctl rebalance apply --plan plan.json": "Carry out a plan that was saved",
    "shardctl rebalance status": "Show which of its moves are finished",
    "shardctl rebalance pause": "Let it stop after the move that runs",
    "shardctl rebalance resume --dry-run": "Show which moves are left",
    "shardctl rebalance plan --node-weight c=2 --out plan.json": "Save it, to review it",
    "shardctl rebalance apply --max-moves 1 --yes": "Only the move that improves most",
    "shardctl node add c --host 10.0.0.3 --dry-run": "Check a new server",
    "shardctl node remove b --dry-run": "Show whether node b is empty, and the proof",
    "shardctl node drain b --dry-run": "Show which nodes get its shards",
    "shardctl node add c --host 10.0.0.3 --with 'ssh: {user: shardctl}'": "Add it, with more keys",
    "shardctl node remove b --gone": "Remove it after its server was destroyed",
    "shardctl node drain b --max-rate 50M": "Empty it slowly",
    "shardctl moves list": "List all moves, the newest first",
    "shardctl moves show": "Show the newest move and its steps",
    "shardctl moves resume": "Continue the unfinished move",
    "shardctl moves abort --dry-run": "Check whether the move can be aborted",
    "shardctl moves reverse 5f3a9c1e --dry-run": "Check whether the move can be reversed",
    "shardctl moves finish 5f3a9c1e --dry-run": "Show what is kept for a reverse",
    "shardctl moves doctor --dry-run": "Show what moves have left behind",
    "shardctl moves resume 5f3a9c1e --max-pause 5s --yes": "Give its cutover more time",
    "shardctl moves abort --target-destroyed": "After the loss of the target's disk",
    "shardctl prune --dry-run": "Show which schemas may be dropped, and why not",
    "shardctl prune --now --yes": "Drop schemas before `retain` has passed, too",
    "shardctl rows misplaced": "Search every table of every shard",
    "shardctl rows misplaced --sql --limit 1000": "Write a script that moves them",
    "shardctl repack --dry-run": "Show which tables are bloated",
    "shardctl repack --yes --recent 1d --wait-timeout 10m": "In a nightly job",
    "shardctl read-only on 2-3": "Refuse writes to two shards",
    "shardctl read-only off 2-3": "Accept writes to two shards again",
    "shardctl sql 'SELECT count(*) FROM photos_by_user'": "Count in every shard",
    "shardctl sql --nodes 'SHOW server_version' -o csv": "Run it on every node",
    "shardctl sql --write --file fix.sql --shards 2-3 --timeout 30s": "Change two shards",
    "shardctl run 'df -h /'": "On every machine",
    "shardctl run 'cat $SHARDCTL_DATA_DIRECTORY/PG_VERSION' --on nodes": "For every node",
    "shardctl hosts": "Show how hosts are reached",
    "shardctl hosts check": "Test every host",
    "shardctl route 31341": "Find the rows of key 31341",
    "shardctl route --id 11637205501278089 -o json": "Find the row of an id",
    "shardctl route --offline 31341 alice": "Use only the topology file",
    "shardctl decode-id 11637205501278089": "Show when and where an id was made",
    "shardctl encode-id --time 2026-01-01": "Print the smallest id since that time",
    "shardctl topology check": "Check ./topology.yaml",
    "shardctl topology diff": "Show shards that have another owner than in the file",
    "shardctl topology pull --dry-run": "Show what would change in the file",
    "shardctl topology schema": "Print the file's JSON Schema",
}
"""What to type, and its purpose; of a group, first one of each of its commands."""

_MOST = 3


def of(command: str) -> list[tuple[str, str]]:
    """Return the examples of a command by its full name, or the first ones of a group."""
    found = [one for one in EXAMPLES.items() if f"{one[0]} ".startswith(f"{command} ")]
    return found[:_MOST]


def text(command: str) -> str:
    """Return the examples of a command as text for its help."""
    lines = [f"  # {purpose}\n  {typed}" for typed, purpose in of(command)]
    return "\n".join(["Examples:", *lines])
