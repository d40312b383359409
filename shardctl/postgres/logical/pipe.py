"""COPY out of one session into another, by libpq's own calls: a block at a time, not a row.

A table of 20 million rows is as many messages. psycopg's `Copy.read` wakes up for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus

from shardctl.errors import Interrupted
from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import sql
    from psycopg.pq.abc import PGresult

    from shardctl.postgres.connection import Connection

BLOCK = 1 << 18
"""Bytes that are read before they are written: memory is bounded by this for each pipe."""

_ENOUGH = BLOCK // 4
"""Bytes that are passed on instead of waiting for more."""
_LOOK_S = 0.2


class Pipe:
    """Rows on their way from `source` to `target`; ends with Interrupted once `stopped` is true.

    After an error both sessions are in the middle of a COPY: close them.
    """

    def __init__(self, source: Connection, target: Connection, stopped: Callable[[], bool]) -> None:
        self._source, self._target = source, target
        self._stopped = stopped
        self._reading = Wire(source.pgconn, self._heed, _LOOK_S)
        self._writing = Wire(target.pgconn, self._heed, _LOOK_S)
        self._ended = False

    def copy(self, out: sql.Composed, into: sql.Composed, passed: Callable[[int], None]) -> None:
        """Run the message `out`, and `into` with its rows; `passed` gets the bytes of each block.

        A message has one COPY, and may have statements before and after it.
        """
        self._ended = False
        # Both servers begin at the same time: of a small table, that is most of the work.
        self._reading.send(out.as_bytes(self._source))
        self._writing.send(into.as_bytes(self._target))
        self._begin(self._reading, ExecStatus.COPY_OUT)
        self._begin(self._writing, ExecStatus.COPY_IN)
        while block := self._read():
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

    def _read(self) -> bytes:
        """Give the rows that have come, up to about a block; nothing at the end."""
        rows, size, take = [], 0, self._reading.pgconn.get_copy_data
        while size < BLOCK and not self._ended:
            length, row = take(1)
            if length > 0:
                rows.append(row)
                size += length
            elif length < 0:
                self._ended = True
            elif size >= _ENOUGH:
                break
            else:
                self._reading.take()
        return b"".join(rows)

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
    """Give a result that is no error; raises psycopg.Error."""
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)
    return result
