"""How long `verify` takes: beside a query written by hand, and with many shards."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, limit, per, say, seconds

if TYPE_CHECKING:
    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale

QUERY = Path(__file__).with_name("verify.sql")
MEGABYTES = 300
THIRD_TABLE = "CREATE TABLE tags (id bigint PRIMARY KEY DEFAULT next_id(), name text UNIQUE);\n"


def many_shards(scale: Scale) -> list[Row]:
    """Time `verify` of 8,192 shards x 3 tables on 4 nodes, and of 1,024.

    The reference is one query a node for the same facts, by psql, all nodes at once, its
    answer thrown away: it judges nothing. It reads the newest and oldest ids too, and the
    whole process of `verify` is timed from outside, Python's start included. The lock tables
    have PostgreSQL's own size, which the query's `query_to_xml` overruns above some 2,000
    shards a node (a lock for each table and index until its end); its servers get eight times
    the size, and so do those of `verify`, being the same.
    """
    times: dict[int, float] = {}
    rows: list[Row] = []
    with fleet.running(4) as running:
        (running.directory / "migrations" / "0003_tags.sql").write_text(THIRD_TABLE)
        running.restart("max_locks_per_transaction", 512)
        for shards in (scale.of(1_024, 8), scale.of(8_192, 16)):
            running.drop()
            say(f"  init of {shards} shards")
            topology = running.init(shards)
            for connection in running.each("app"):
                connection.execute("VACUUM ANALYZE")
            running.settle()
            peaks: list[int] = []
            sides = {"verify": partial(_verify, topology, peaks), "query": partial(_query, running)}
            measured = alternate(sides, scale.of(5, 1))
            times[shards] = statistics.median(measured["verify"]) / shards
            peak = max(peaks) / 1024
            rows += [
                compare(
                    f"verify, {shards:,} shards x 3 tables, 4 nodes",
                    measured["verify"],
                    measured["query"],
                    against="one query a node",
                    shown=seconds,
                    target=3,
                ),
                limit(f"  its peak memory, {shards:,} shards", peak, MEGABYTES, "MB"),
            ]
    few, many = sorted(times)
    name = f"  time per shard, {many:,} against {few:,}"
    shown = per(1, "shard")
    return [*rows, compare(name, [times[many]], [times[few]], against="", shown=shown, target=1)]


def _verify(topology: Topology, peaks: list[int]) -> float:
    """Time the command, and note the kilobytes of its peak."""
    _, took, peak = fleet.watched([fleet.SHARDCTL, "--topology", topology.path, "verify"])
    peaks.append(peak)
    return took


def _query(running: Fleet) -> float:
    commands = [[*running.psql(i, user="postgres"), "-At", "-f", QUERY] for i in range(4)]
    return fleet.take(commands)
