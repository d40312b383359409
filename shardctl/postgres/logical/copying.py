"""Copy the rows of a snapshot to another server, several tables at a time, largest first."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from shardctl import fanout
from shardctl.errors import Interrupted, Refused
from shardctl.libpq import Wire, reason_of
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg.pq.abc import PGresult

    from shardctl.postgres.connection import Connection, Route

FROZEN_FROM = 8 << 20
"""Bytes from which a table is filled with frozen rows: a TRUNCATE costs a few ms before."""

_BLOCK = 1 << 18
"""Bytes that are read before they are written: memory is bounded by this for each pipe."""

_ENOUGH = _BLOCK // 4
"""Bytes that are passed on instead of waiting for more."""
_LOOK_S = 0.2

_QUERIES = queries.load("shardctl.postgres.logical", "copying.sql")
_SOURCE = "SET row_security = off; SET lc_monetary = 'C'; SET xmloption = content"
_TARGET = (
    "SET lc_monetary = 'C'; SET xmloption = content; SET array_nulls = on;"
    " SET synchronous_commit = off"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of its own, such as a partition; `columns` without generated ones.

    `binary` says whether another server of this major version reads its rows in that format.
    """

    schema: str
    name: str
    columns: tuple[str, ...]
    bytes: int
    binary: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def tables(session: Connection, schemas: Sequence[str]) -> list[Table]:
    """List what is to be copied, the largest first."""
    found = session.execute(_QUERIES["tables"], {"schemas": list(schemas)})
    return [Table(s, n, tuple(columns), size, binary) for s, n, columns, size, binary in found]


class Throttle:
    """Holds pipes back so that all of them together pass so many bytes a second."""

    def __init__(self, bytes_per_s: float | None, stop: threading.Event) -> None:
        self._rate = bytes_per_s
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def passed(self, count: int) -> None:
        """Wait until the next bytes may pass, or until the copy is stopped."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            # What was not used before is not caught up with.
            self._free_at = max(self._free_at, now) + count / self._rate
            wait_s = self._free_at - now
        self._stop.wait(wait_s)


def copy(
    route: Route,
    tables: Sequence[Table],
    *,
    snapshot: str,
    jobs: int,
    max_rate: float | None = None,
    advance: Callable[[int], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> None:
    """Copy the tables' rows of `snapshot` into the target's, which are empty and have no triggers.

    `max_rate` is in bytes a second of all `jobs` together. `advance` gets the bytes of the tables,
    as they are on the source's disk, little by little, from several threads.
    When `stop` is set, and on Ctrl-C, the tables are left as they are. Raises Interrupted,
    copy_failed, NodeUnavailable.
    """
    stop, failed = stop or threading.Event(), threading.Event()
    throttle = Throttle(max_rate, stop)
    todo = iter(tables)  # a thread that has copied one takes the next

    def one(pipe: Pipe, table: Table) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
        given = {
            "table": sql.Identifier(table.schema, table.name),
            "columns": sql.SQL("({})").format(columns) if table.columns else sql.SQL(""),
            "format": sql.SQL("binary" if table.binary and pipe.binary else "text"),
        }
        out = _QUERIES["out"].format(snapshot=sql.Literal(snapshot), **given)
        into = _QUERIES["in_frozen" if table.bytes >= FROZEN_FROM else "in"].format(**given)
        left = table.bytes

        def passed(count: int) -> None:
            nonlocal left
            advance(min(count, left))
            left -= min(count, left)
            throttle.passed(count)

        pipe.copy(out, into, passed)
        advance(left)

    def work(_: int) -> None:
        try:
            with (
                closing(route.connect(route.source)) as source,
                closing(route.connect(route.target)) as target,
            ):
                source.execute(_SOURCE)
                target.execute(_TARGET)
                pipe = Pipe(source, target, lambda: stop.is_set() or failed.is_set())
                for table in todo:
                    try:
                        one(pipe, table)
                    except psycopg.Error as error:
                        raise Refused(
                            "copy_failed",
                            f"table {table} could not be copied from node {route.source.name} to "
                            f"node {route.target.name}: {reason_of(error)}",
                            hint="correct what it names, then `shardctl moves resume` copies all "
                            "tables again",
                        ) from error
        except BaseException:
            failed.set()
            raise

    outcomes = fanout.run(range(min(jobs, len(tables))), work, width=jobs, stop=failed)
    # Those that were stopped because another one failed are Interrupted.
    for outcome in sorted(outcomes, key=lambda one: isinstance(one.error, Interrupted)):
        outcome.result()


class Pipe:
    """Rows on their way from `source` to `target`; ends with Interrupted once `stopped` is true.

    By libpq's own calls, a block at a time: a table of 20 million rows is as many messages, and
    psycopg's `Copy.read` wakes up for each of them.
    After an error both sessions are in the middle of a COPY: close them.
    """

    def __init__(self, source: Connection, target: Connection, stopped: Callable[[], bool]) -> None:
        self._source, self._target = source, target
        self._stopped = stopped
        majors = {one.info.server_version // 10_000 for one in (source, target)}
        self.binary = len(majors) == 1
        """Whether both servers are of the same major version."""
        self._reading = Wire(source.pgconn, self._heed, _LOOK_S)
        self._writing = Wire(target.pgconn, self._heed, _LOOK_S)

    def copy(self, out: sql.Composed, into: sql.Composed, passed: Callable[[int], None]) -> None:
        """Run the message `out`, and `into` with its rows; `passed` gets the bytes of each block.

        A message has one COPY, and may have statements before and after it.
        """
        # Both servers begin at the same time: of a small table, that is most of the work.
        self._reading.send(out.as_bytes(self._source))
        self._writing.send(into.as_bytes(self._target))
        self._begin(self._reading, ExecStatus.COPY_OUT)
        self._begin(self._writing, ExecStatus.COPY_IN)
        for block in self._blocks():
            self._write(block)
            passed(len(block))
        self._end(self._reading)
        while self._writing.pgconn.put_copy_end() == 0:
            self._writing.flush()
        self._writing.flush()
        self._end(self._writing)

    def _begin(self, wire: Wire, wanted: ExecStatus) -> None:
        """Pass over the results of a message before its COPY."""
        for result in wire.results():
            if _good(result).status == wanted:
                return
        raise psycopg.OperationalError("the message had no COPY")

    def _end(self, wire: Wire) -> None:
        """Take the results of a message to its end."""
        for result in wire.results():
            _good(result)

    def _blocks(self) -> Iterator[bytes]:
        """Give the rows as they come, in blocks."""
        rows, size, length = list[Any](), 0, 0
        while length >= 0:
            length, row = self._reading.pgconn.get_copy_data(1)
            if length > 0:
                rows.append(row)
                size += length
            elif length == 0 and size < _ENOUGH:
                self._reading.take()
                continue
            if rows and (length <= 0 or size >= _BLOCK):
                yield b"".join(rows)
                rows, size = [], 0

    def _write(self, block: bytes) -> None:
        try:
            while self._writing.pgconn.put_copy_data(block) == 0:
                self._writing.flush()
            self._writing.flush()
        except psycopg.OperationalError:
            self._end(self._writing)  # raises the reason, if the server gave one
            raise

    def _heed(self) -> None:
        if self._stopped():
            raise Interrupted("stopped while tables were being copied")


def _good(result: PGresult) -> PGresult:
    """Return the result; raises the psycopg.Error that it stands for."""
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)
    return result
