"""How long `shards list` takes for many shards, beside a query that measures them one by one."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.checks import ids
from shardctl.state.shard_loads import QUERIES
from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, milliseconds, say, seconds

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale

QUERY = Path(__file__).with_name("shards.sql")
THIRD_TABLE = "CREATE TABLE tags (id bigint PRIMARY KEY DEFAULT next_id(), name text UNIQUE);\n"
SAMPLE_S = 1.0
TARGET_S = 2.0


def many_shards(scale: Scale) -> list[Row]:
    """Time `shards list --sort tps` of 8,192 shards x 3 tables on 4 nodes, without its sample.

    The whole process is timed from outside, Python's start included, and the second of the sample
    is taken off. The reference is what an operator types by hand: pg_total_relation_size of every
    table and a sum over pg_stat_user_tables, by psql, all nodes at once, answers thrown away.
    `--oldest` is timed beside it, to show why it is not the default.
    """
    count, rounds = scale.of(8_192, 16), scale.of(5, 1)
    with fleet.running(4) as running:
        (running.directory / "migrations" / "0003_tags.sql").write_text(THIRD_TABLE)
        say(f"  init of {count} shards")
        topology = running.init(count)
        for index in range(4):
            with running.connect(index, user="postgres") as connection:
                connection.execute("VACUUM ANALYZE")
        running.settle()
        sides = {
            "tps": lambda: _list(topology, "--sort", "tps") - SAMPLE_S,
            "query": lambda: _query(running),
        }
        times = alternate(sides, rounds)
        others = {
            "no sample, top 10": ["--top", "10"],
            "no sample, JSON": ["-o", "json"],
            "--oldest, top 10": ["--oldest", "--sort", "oldest", "--top", "10"],
        }
        before = running.cpu()
        _list(topology, "--sort", "tps")
        used = running.cpu() - before
        beside = {
            name: [_list(topology, *options) for _ in range(rounds)]
            for name, options in others.items()
        }
    row = compare(
        f"shards list --sort tps, {count:,} shards x 3 tables, 4 nodes",
        times["tps"],
        times["query"],
        against="by hand",
        shown=seconds,
    )
    took = statistics.median(times["tps"])
    target = f"<= {TARGET_S:g} s + {SAMPLE_S:g} s sample"
    return [
        Row(row.name, row.ours, row.reference, row.ratio, row.spread, target, took <= TARGET_S),
        Row("  CPU of the command and its servers", seconds(used), ""),
        *(Row(f"  {name}", seconds(statistics.median(each)), "") for name, each in beside.items()),
    ]


SIZE = "pg_relation_size(part.oid)"
SOURCES = {
    "pg_relation_size": SIZE,
    "pg_stat_file": "(pg_stat_file(pg_relation_filepath(part.oid), true)).size",
    "relpages": "(SELECT relpages::bigint * 8192 FROM pg_class WHERE oid = part.oid)",
}
"""Where sizes can come from: the first is what `shards list` has, the rest take its place."""


def sources(scale: Scale) -> list[Row]:
    """Count the CPU time of one backend for each question about 2,048 shards x 3 tables.

    Each question has a session of its own, whose caches are empty, as the command has. CPU time is
    the same on a busy machine; the kernel has it in /proc/PID/schedstat.
    """
    count, rounds = scale.of(2_048, 16), scale.of(3, 1)
    sizes = QUERIES["sizes"].as_string()
    questions = {f"sizes by {name}": sizes.replace(SIZE, text) for name, text in SOURCES.items()}
    questions["counters"] = QUERIES["counters"].as_string()
    schemas = [f"shard{shard}" for shard in range(count)]
    took: dict[str, list[float]] = {name: [] for name in (*questions, "oldest ids")}
    with fleet.running(1) as running:
        (running.directory / "migrations" / "0003_tags.sql").write_text(THIRD_TABLE)
        running.init(count)
        with running.connect(user="postgres") as connection:
            connection.execute("VACUUM ANALYZE")
        for _ in range(rounds):
            for name, question in questions.items():
                with running.connect(user="postgres") as session:
                    session.execute(question.encode(), {"node": "a"}).fetchall()
                    took[name].append(_cpu(session))
            with running.connect(user="postgres") as session:
                ids.extremes(session, ids.tables_of(session, schemas))
                took["oldest ids"].append(_cpu(session))
    return [
        Row(f"{name}, {count:,} shards: CPU of a backend", milliseconds(min(times)), "")
        for name, times in took.items()
    ]


def _cpu(session: Connection) -> float:
    """Read the seconds of CPU that a backend on this machine has used."""
    used = Path(f"/proc/{session.info.backend_pid}/schedstat").read_text(encoding="ascii")
    return int(used.split()[0]) / 1e9


def _list(topology: Topology, *options: str) -> float:
    command: list[str | Path] = [fleet.SHARDCTL, "--topology", topology.path, "shards", "list"]
    began = time.perf_counter()
    fleet.run([*command, *options])
    return time.perf_counter() - began


def _query(running: Fleet) -> float:
    commands = [[*running.psql(i, user="postgres"), "-At", "-f", QUERY] for i in range(4)]
    began = time.perf_counter()
    with fleet.together(commands, [Path(os.devnull)] * 4) as started:
        fleet.wait_all(started)
    return time.perf_counter() - began
