"""A rebalance onto two new nodes under a load, beside the bare copies of its moves."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.postgres import binaries
from shardctl.sandbox import servers
from shardctl.topology.model import NodeName, ShardId
from tests.bench import fleet as fleets
from tests.bench import moving
from tests.bench.measure import Row, milliseconds, rounds, say, seconds

if TYPE_CHECKING:
    from shardctl.topology.model import Node
    from tests.bench.measure import Scale
    from tests.bench.moving import Sandbox

MOST = 1.5
"""How long all moves may take together, of the sum of their bare copies."""
SHARDS, NODES = 64, 2
RATE = 20
"""Operations a second of each client: the load is to go on, and not to take the machine."""
JOBS = 4
_NEW = (NodeName("c"), NodeName("d"))
_FILL = """\
INSERT INTO {schema}.photos_by_user (id, user_id, caption, image_url)
SELECT n, n % 1000, '', (SELECT string_agg(md5(n::text || k::text), '')
                         FROM generate_series(1, 30) AS k)
FROM generate_series(1, {rows}) AS n
"""


def apply(scale: Scale) -> list[Row]:
    """Rebalance 64 shards from 2 nodes to 4, with clients at work on all of them.

    The reference is `pg_dump -Fd -j 4` and `pg_restore -j 4` of the same shards from the same
    source to the same target, one move after another, beside the same load, before the rebalance.
    """
    rows = scale.of(16_000, 200)

    def once(number: int) -> tuple[float, float, dict[str, Any], int]:
        say(f"  rebalance {number + 1} ({moving.busy()})")
        with moving.sandbox(SHARDS, NODES, len(_NEW), aliases=("shard",)) as fleet:
            _fill(fleet, rows)
            _join(fleet)
            fleet.settle()
            with fleet.load(rate=RATE) as load:
                planned = json.loads(fleet.call("rebalance", "plan", "-o", "json"))
                bare = sum(_bare(fleet, one) for one in planned["moves"])
                fleet.settle()
                began = time.perf_counter()
                fleet.call("rebalance", "apply", "--yes")
                took = time.perf_counter() - began
                return took, bare, load.end(0), len(planned["moves"])

    done = rounds(scale.of(3, 1), once)
    ratios = [took / bare for took, bare, _, _ in done]
    median = sorted(range(len(done)), key=ratios.__getitem__)[len(done) // 2]
    took, bare, _, moves = done[median]
    return [
        Row(
            f"rebalance {SHARDS} shards from {NODES} to {NODES + len(_NEW)} nodes: {moves} moves",
            seconds(took),
            f"bare copies {seconds(bare)}",
            ratio=ratios[median],
            spread=(min(ratios), max(ratios)),
            target=f"<= {MOST:g}",
            met=ratios[median] <= MOST,
        ),
        replace(
            moving.flaws("the load", [found for _, _, found, _ in done]),
            name="  errors, lost, duplicates",
        ),
        Row(
            "  longest wait of a client",
            milliseconds(max(found["longest_ms"] for _, _, found, _ in done) / 1000),
            "",
        ),
    ]


def _fill(fleet: Sandbox, rows: int) -> None:
    topology = fleet.topology()
    for node in topology.owning():
        with fleet.connect(node.name) as session:
            for shard in node.shards:
                session.execute(_FILL.format(schema=topology.schema(shard), rows=rows).encode())


def _join(fleet: Sandbox) -> None:
    """Make the new nodes members, as docs/howto/add-a-node.md does."""
    topology = fleet.topology()
    nodes = {
        name: replace(node, shards=(ShardId(0),) if name in _NEW else ())
        for name, node in topology.nodes.items()
    }
    servers.up(replace(topology, nodes=nodes), Silent())
    for name in _NEW:
        where = _where(topology.nodes[name])
        for statement in ("CREATE ROLE app LOGIN", "CREATE DATABASE app", "CREATE DATABASE bare"):
            fleets.run([_program("psql"), "-X", "-q", *where, "-d", "postgres", "-c", statement])
    fleet.call("init", "--yes")


def _bare(fleet: Sandbox, move: dict[str, Any]) -> float:
    """Copy the shards of a move into another database of its target; give the seconds."""
    topology = fleet.topology()
    source, target = (topology.nodes[NodeName(move[end])] for end in ("source", "target"))
    schemas = [topology.schema(ShardId(shard)) for shard in move["shards"]]
    directory = fleet.directory / f"dump-{move['source']}-{move['target']}-{schemas[0]}"
    named = [f"--schema={schema}" for schema in ("shardctl", *schemas)]
    dump = [_program("pg_dump"), *_where(source), "-Fd", f"--jobs={JOBS}", *named]
    restore = [_program("pg_restore"), *_where(target), "-d", "bare", f"--jobs={JOBS}"]
    began = time.perf_counter()
    fleets.run([*dump, f"--file={directory}", "app"])
    fleets.run([*restore, str(directory)])
    took = time.perf_counter() - began
    for name in ("shardctl", *schemas):
        drop = f"DROP SCHEMA {name} CASCADE"
        fleets.run([_program("psql"), "-X", "-q", *_where(target), "-d", "bare", "-c", drop])
    return took


def _where(node: Node) -> list[str]:
    return ["-h", node.host, "-p", str(node.port), "-U", "postgres"]


def _program(name: str) -> str:
    return str(binaries.find(None, account=accounts.server_account(None)).program(name))
