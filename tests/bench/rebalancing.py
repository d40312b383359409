"""A rebalance as it is carried out: moves side by side, and a fleet of two nodes that gets four."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from shardctl.postgres import binaries
from shardctl.topology.model import ShardId
from tests.bench import fleet as fleets
from tests.bench import moving
from tests.bench.measure import Row, compare, rounds, say, seconds, timed, versus
from tests.bench.moves import PACED, Found
from tests.bench.stream_moves import fill
from tests.fixtures.fleets.balance import write_plan

if TYPE_CHECKING:
    from tests.bench.measure import Scale
    from tests.bench.moving import Sandbox

SIDE_BY_SIDE = 0.65
"""How long two moves at the same time may take, of what they take one after the other."""
OF_COPIES = 1.5
"""How long a rebalance may take, of the sum of the bare copies of its moves."""
_RATE = "20M"
_JOBS = 4


def side_by_side(scale: Scale) -> list[Row]:
    """Move a shard from a to c and one from b to d, at the same time and one after the other.

    Some hundred MB each, with --max-rate: on one machine, two moves without it share processors,
    which those of four machines do not.
    """
    rows = scale.of(200_000, 2_000)
    count = scale.of(3, 1)
    shards = {node: iter(range(first, first + 2 * count)) for node, first in (("a", 0), ("b", 8))}

    with moving.sandbox(32, 4, 0) as fleet:

        def side(parallel: int) -> float:
            moves = [(a, b, [next(shards[a])]) for a, b in (("a", "c"), ("b", "d"))]
            fill(fleet, rows, [ShardId(shard) for _, _, own in moves for shard in own])
            plan = write_plan(fleet.directory / "plan.json", fleet.topology(), *moves)
            fleet.settle()
            words = ("rebalance", "apply", "--plan", plan, "--max-rate", _RATE, "--yes")
            took = timed(lambda: fleet.call(*words, "--parallel", str(parallel)))()
            say(f"  --parallel {parallel}: {took:.1f} s")
            return took

        name = f"two moves at the same time, with --max-rate {_RATE}"
        sides = {"beside": lambda: side(2), "after": lambda: side(1)}
        return versus(name, sides, count, {"after": ("one after the other", SIDE_BY_SIDE)}, seconds)


def to_four(scale: Scale) -> list[Row]:
    """Give 64 shards on 2 nodes to 4, two moves at a time, with a load on all of them.

    Set against the sum of bare copies of the same shards, beside the same load and without one:
    pg_dump and pg_restore, with four jobs each. The load rests between its operations.
    """
    rows = scale.of(10_000, 200)

    def once(number: int) -> tuple[float, float, float, Found]:
        say(f"  round {number + 1} ({moving.busy()})")
        with moving.sandbox(64, 4, 0) as fleet:
            empty = [f"--node-weight={node}=0" for node in "cd"]
            fleet.call("rebalance", "apply", "--by", "count", *empty, "--yes")
            fleet.call("prune", "--now", "--yes")
            every = [ShardId(shard) for shard in range(64)]
            fill(fleet, rows, every)
            fleet.settle()
            before = fleet.topology().owners()
            with fleet.load(rate=PACED) as load:
                words = ("rebalance", "apply", "--parallel", "2", "--yes")
                took = timed(lambda: fleet.call(*words))()
                found = load.end(0)
            moved = [
                shard for shard, node in fleet.topology().owners().items() if before[shard] != node
            ]
            fleet.settle()
            with fleet.load(rate=PACED) as load:
                beside = _bare(fleet, moved)
                load.end(0)
            fleet.settle()
            bare = _bare(fleet, moved)
            say(f"  {len(moved)} shards: {took:.1f} s, bare copies {beside:.1f}, {bare:.1f} s")
            return took, beside, bare, found

    done = rounds(scale.of(3, 1), once)
    took, beside, bare, founds = zip(*done, strict=True)
    name = "rebalance of 64 shards from 2 nodes to 4, beside a load"
    return [
        compare(name, took, beside, against="bare copies", shown=seconds, target=OF_COPIES),
        compare("  the copies without the load", took, bare, against="bare copies", shown=seconds),
        moving.flaws("the rebalance", founds),
    ]


def _bare(fleet: Sandbox, shards: list[ShardId]) -> float:
    """Copy shards from where they are now to another node, into a database of its own."""
    topology, took = fleet.topology(), 0.0
    nodes = list(topology.nodes.values())
    for number, node in enumerate(nodes):
        own = [shard for shard in node.shards if shard in shards]
        if not own:
            continue
        to = nodes[number - 1]
        with fleet.connect(to.name) as session:
            major = session.info.server_version // 10_000
            session.execute("CREATE DATABASE bare TEMPLATE template0")
        programs, dump = binaries.find_clients(major), fleet.directory / "dump"
        schemas = [f"--schema={topology.schema(shard)}" for shard in own]
        where = [f"host={n.host} port={n.port} user=postgres dbname=" for n in (node, to)]
        began = time.perf_counter()
        argv = ["--format=directory", f"--jobs={_JOBS}", f"--file={dump}", *schemas]
        fleets.run([programs.program("pg_dump"), *argv, f"--dbname={where[0]}app"])
        argv = [f"--jobs={_JOBS}", f"--dbname={where[1]}bare", "--no-owner", str(dump)]
        fleets.run([programs.program("pg_restore"), *argv])
        took += time.perf_counter() - began
        shutil.rmtree(dump)
        with fleet.connect(to.name) as session:
            session.execute("DROP DATABASE bare")
    return took
