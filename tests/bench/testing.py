"""What a test fleet costs the tests of an application: its start, and the reset between tests."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import testing
from tests.bench.measure import Row, alternate, compare, milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.testing.fleet import ShardFleet
    from tests.bench.measure import Scale, Side

TABLES = ("photos", "likes", "tags")
_MIGRATION = "".join(
    f"CREATE TABLE {table} (id bigint PRIMARY KEY DEFAULT next_id(), body text UNIQUE);\n"
    for table in TABLES
)
_SEED = "CREATE TABLE kinds (name text PRIMARY KEY);\nINSERT INTO kinds VALUES ('a'), ('b');\n"


def start_and_reset(scale: Scale) -> list[Row]:
    """Time a fleet's start, and a reset against one TRUNCATE a node of all its tables.

    A start uses the template that the first one has left; the other has none. Before each reset,
    every table of every shard gets a row, in sessions of their own. Fair: TRUNCATE is told the
    tables, the reset has to find them, and does not touch the fourth, which holds rows of
    migrations and which the other leaves out. Both have their sessions open; the other takes one
    node after the other, so its time is divided by the number of nodes.
    """
    few, many = 16, scale.of(64, 32)
    _start(few)
    starts = alternate({"kept": lambda: _start(few), "made": lambda: _make(few)}, scale.of(5, 1))
    rows = [
        compare(
            f"test fleet, 2 nodes: start with {few} shards from a template",
            starts["kept"],
            starts["made"],
            against="without one",
            shown=seconds,
        )
    ]
    for shards in (few, many):
        with _running(shards) as running:
            times = alternate(_sides(running), scale.of(21, 2))
        for side, what in {"written": "every table written to", "fresh": "none"}.items():
            rows.append(
                compare(
                    f"  reset, {shards} shards x {len(TABLES)} tables, {what}",
                    times[side],
                    times["truncate"],
                    against="TRUNCATE",
                    shown=milliseconds,
                )
            )
    return rows


def _make(shards: int) -> float:
    """Start a fleet where no template is."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        usual, tempfile.tempdir = tempfile.tempdir, name
        try:
            return _start(shards)
        finally:
            tempfile.tempdir = usual


def _start(shards: int) -> float:
    began = time.perf_counter()
    with _running(shards):
        started = time.perf_counter()
    return started - began


def _sides(running: ShardFleet) -> dict[str, Side]:
    sessions = {
        node: psycopg.connect(running.dsn(node, user="postgres"), autocommit=True)
        for node in running.nodes
    }

    def tables(node: str) -> list[sql.Identifier]:
        return [
            sql.Identifier(running.schema(shard), table)
            for shard in range(running.shard_count)
            if running.node_of(shard) == node
            for table in TABLES
        ]

    def write() -> None:
        for node, session in sessions.items():
            for table in tables(node):
                session.execute(sql.SQL("INSERT INTO {} (body) VALUES ('x')").format(table))

    def reset(*, written: bool) -> float:
        if written:
            write()
        began = time.perf_counter()
        running.reset()
        return time.perf_counter() - began

    def truncate() -> float:
        write()
        statements = {
            node: sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables(node)))
            for node in sessions
        }
        began = time.perf_counter()
        for node, session in sessions.items():
            session.execute(statements[node])
        return (time.perf_counter() - began) / len(sessions)

    return {
        "written": lambda: reset(written=True),
        "fresh": lambda: reset(written=False),
        "truncate": truncate,
    }


@contextmanager
def _running(shards: int) -> Iterator[ShardFleet]:
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "migrations").mkdir()
        (directory / "migrations" / "0001_tables.sql").write_text(_MIGRATION + _SEED)
        file = directory / "topology.yaml"
        file.write_text(
            f"cluster: bench\nshards: {{count: {shards}}}\n"
            "database: {name: app, app_roles: [app], migrations: migrations}\n"
            f"nodes:\n  a: {{host: 127.0.0.1, port: 5432, shards: 0-{shards - 1}}}\n"
        )
        with testing.running(file) as running:
            yield running
