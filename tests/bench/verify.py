"""How long `verify` takes: beside a query written by hand, and with many shards."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.fanout import Silent
from shardctl.sandbox import servers
from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, per, say, seconds

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
    rounds = scale.of(5, 1)
    times: dict[int, list[float]] = {}
    rows: list[Row] = []
    with fleet.running(4) as running:
        (running.directory / "migrations" / "0003_tags.sql").write_text(THIRD_TABLE)
        _enlarge_lock_tables(running)
        for shards in (scale.of(1_024, 8), scale.of(8_192, 16)):
            running.drop()
            say(f"  init of {shards} shards")
            topology = running.init(shards)
            for index in range(4):
                with running.connect(index, user="postgres") as connection:
                    connection.execute("VACUUM ANALYZE")
            running.settle()
            peaks: list[int] = []

            def process(topology: Topology = topology, peaks: list[int] = peaks) -> float:
                took, peak = _verify(topology)
                peaks.append(peak)
                return took

            sides = {"verify": process, "query": lambda: _query(running)}
            measured = alternate(sides, rounds)
            times[shards] = measured["verify"]
            rows.append(
                compare(
                    f"verify, {shards:,} shards x 3 tables, 4 nodes",
                    measured["verify"],
                    measured["query"],
                    against="one query a node",
                    shown=seconds,
                    target=3,
                )
            )
            peak = max(peaks) / 1024
            rows.append(
                Row(
                    f"  its peak memory, {shards:,} shards",
                    f"{peak:.0f} MB",
                    "",
                    target=f"< {MEGABYTES} MB",
                    met=peak < MEGABYTES,
                )
            )
    few, many = sorted(times)
    ratio = statistics.median(times[many]) / many / (statistics.median(times[few]) / few)
    rows.append(
        Row(
            f"  time per shard, {many:,} against {few:,}",
            per(many, "shard")(statistics.median(times[many])),
            per(few, "shard")(statistics.median(times[few])),
            ratio=ratio,
            target="<= 1",
            met=ratio <= 1,
        )
    )
    return rows


def _enlarge_lock_tables(running: Fleet) -> None:
    """Give the hand-written query the locks that it needs, by a restart."""
    for index in range(4):
        with running.connect(index, user="postgres", dbname="postgres") as connection:
            connection.execute("ALTER SYSTEM SET max_locks_per_transaction = 512")
    topology = running.topology(4)
    servers.down(topology, Silent(), delete=False)
    servers.up(topology, Silent())


def _verify(topology: Topology) -> tuple[float, int]:
    """Run the command; give its seconds and the kilobytes of its peak."""
    command: list[str | Path] = [fleet.SHARDCTL, "--topology", str(topology.path), "verify"]
    watched: list[str | Path] = [sys.executable, "-c", fleet.WATCHER, *command]
    done = subprocess.run(
        watched, check=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    took, peak = done.stderr.split()[-2:]
    return float(took), int(peak)


def _query(running: Fleet) -> float:
    commands = [[*running.psql(i, user="postgres"), "-At", "-f", QUERY] for i in range(4)]
    outputs = [Path(os.devnull)] * 4
    began = time.perf_counter()
    with fleet.together(commands, outputs) as started:
        fleet.wait_all(started)
    return time.perf_counter() - began
