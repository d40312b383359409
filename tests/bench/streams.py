"""The copy of a streamed move, beside pg_dump and pipes of psql; and what a small table costs."""

from __future__ import annotations

import resource
import shlex
import shutil
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from shardctl.postgres import binaries
from shardctl.postgres.connection import Route
from shardctl.postgres.logical import copying, structure
from tests.bench import fleet as fleets
from tests.bench.measure import Row, alternate, compare, limit, per, say, seconds, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.postgres.connection import Connection
    from tests.bench.measure import Scale, Side

SCHEMA = "shard2"
JOBS = 4
"""Tables at a time, on every side."""
PEAK_MB = 150
"""What shardctl may use of the machine's memory, however large the tables are."""

_TABLES = 64
_ROWS = 176_000
"""In each table: about 32 MB without indexes."""
_MANY, _FEW = 10_000, 100

_TABLE = """\
CREATE TABLE shard2.{name} (
    id bigint PRIMARY KEY, user_id bigint NOT NULL, url text NOT NULL, likes integer NOT NULL,
    at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON shard2.{name} (user_id, at);
INSERT INTO shard2.{name}
SELECT n, n % 1000, repeat(md5(n::text), 3), n % 7, now() FROM generate_series(1, {rows}) AS n
"""
_PIPES = """\
xargs -P {jobs} -I TABLE sh -c '
    {source} -c "COPY TABLE TO STDOUT (FORMAT binary)" |
    {target} -c "COPY TABLE FROM STDIN (FORMAT binary)"' < {tables}
"""


def copy(scale: Scale) -> list[Row]:
    """Copy 2 GB in 64 tables with two indexes each, and measure what small tables cost.

    Ours against the faster of pg_dump -Fd then pg_restore, and psql pipes between the sections of
    a dump, in each round. All make the structure, the rows and the indexes, four at a time.
    """
    rounds = scale.of(3, 1)
    with fleets.running(2) as fleet:
        with _filled(fleet, _TABLES, scale.of(_ROWS, 500)) as (route, source):
            size = sum(table.bytes for table in copying.tables(source, [SCHEMA]))
            times = alternate(_sides(fleet, route, source), rounds)
        faster = [min(pair) for pair in zip(times["dump"], times["pipes"], strict=True)]
        small = {
            count: [_each(fleet, count) for _ in range(rounds)]
            for count in (_FEW, scale.of(_MANY, 200))
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    few, many = small.values()
    return [
        compare(
            f"stream: copy of {size / 1e9:.2f} GB in {_TABLES} tables",
            times["ours"],
            faster,
            against="faster of pg_dump/pg_restore and psql pipes",
            shown=seconds,
            target=1.2,
            note=", ".join(f"{name} {seconds(min(took))}" for name, took in times.items()),
        ),
        compare(
            f"  copy of a small table, of {max(small):,}",
            many,
            few,
            against=f"of {_FEW}",
            shown=per(1, "table"),
            target=1.2,
        ),
        limit("  memory of the process that copied both", peak, PEAK_MB, "MB"),
    ]


def _sides(fleet: fleets.Fleet, route: Route, source: Connection) -> dict[str, Side]:
    """Make a side of each kind of copy, which begins with an empty target."""
    major, directory = source.info.server_version // 10_000, fleet.directory
    programs, jobs = binaries.find_clients(major), f"--jobs={JOBS}"

    def pg_dump(*how: str) -> None:
        argv = [programs.program("pg_dump"), f"--schema={SCHEMA}", *how]
        fleets.run([*argv, f"--dbname={route.conninfo(route.source, {})}"])

    def pg_restore(*how: str) -> None:
        target = f"--dbname={route.conninfo(route.target, {})}"
        fleets.run([programs.program("pg_restore"), "--exit-on-error", target, *how])

    def ours() -> None:
        structure.make_tables(route, [SCHEMA], major=major)
        with _snapshot(route) as snapshot:
            _copy(route, source, snapshot)
        structure.make_rest(route, [SCHEMA], major=major, jobs=JOBS)

    def dump() -> None:
        pg_dump("--format=directory", jobs, f"--file={directory / 'dump'}")
        pg_restore(jobs, str(directory / "dump"))

    def pipes() -> None:
        archive, tables = directory / "archive", directory / "tables"
        tables.write_text("".join(f"{table}\n" for table in copying.tables(source, [SCHEMA])))
        pg_dump("--format=custom", "--schema-only", f"--file={archive}")
        pg_restore("--section=pre-data", str(archive))
        ends = [shlex.join(map(str, fleet.psql(n, user="postgres"))) for n in (0, 1)]
        script = _PIPES.format(jobs=JOBS, source=ends[0], target=ends[1], tables=tables)
        fleets.run(["sh", "-c", script])
        pg_restore("--section=post-data", jobs, str(archive))

    def side(work: Callable[[], None]) -> float:
        shutil.rmtree(directory / "dump", ignore_errors=True)
        with route.connect(route.target) as session:
            structure.drop(session, [SCHEMA])
        fleet.settle()
        took = timed(work)()
        say(f"  {work.__name__}: {took:.2f} s")
        return took

    return {work.__name__: partial(side, work) for work in (ours, dump, pipes)}


def _copy(route: Route, source: Connection, snapshot: str) -> None:
    copying.copy(route, copying.tables(source, [SCHEMA]), snapshot=snapshot, jobs=JOBS)


def _each(fleet: fleets.Fleet, count: int) -> float:
    """Copy so many small tables, and give the seconds that each took."""
    with _filled(fleet, count, 10) as (route, source):
        major = source.info.server_version // 10_000
        with route.connect(route.target) as session:
            structure.drop(session, [SCHEMA])
        took = timed(lambda: structure.make_tables(route, [SCHEMA], major=major))()
        say(f"  structure of {count}: {took:.2f} s")
        fleet.settle()
        with _snapshot(route) as snapshot:
            took = timed(lambda: _copy(route, source, snapshot))()
        say(f"  rows of {count}: {took:.2f} s")
    return took / count


@contextmanager
def _filled(fleet: fleets.Fleet, count: int, rows: int) -> Iterator[tuple[Route, Connection]]:
    """Give a database on both servers, with so many tables on the first."""
    topology = fleet.topology(2)
    a, b = topology.nodes.values()
    route = Route(a, b, topology.database, "bench")
    fleet.drop()
    for admin in fleet.each():
        admin.execute("CREATE DATABASE app")
    say(f"  filling {count} tables")
    with route.connect(a) as source:
        source.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for number in range(count):
            source.execute(_TABLE.format(name=f"t{number}", rows=rows).encode())
        source.execute("VACUUM (ANALYZE)" if count == _TABLES else "SELECT 1")
        yield route, source


@contextmanager
def _snapshot(route: Route) -> Iterator[str]:
    """Give a snapshot of the source, as that of a slot is."""
    with route.connect(route.source) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        [(name,)] = session.execute("SELECT pg_export_snapshot()")
        yield name
        session.execute("ROLLBACK")
