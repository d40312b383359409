"""COPY out of one session into another, by libpq's own calls: a block at a time, not a row.

A table of 20 million rows is as many messages. psycopg's `Copy.read` wakes up for each of them.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus

from shardctl.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import sql
    from psycopg.pq.abc import PGconn, PGresult

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
        self._ended = False

    def copy(self, out: sql.Composed, into: sql.Composed, passed: Callable[[int], None]) -> None:
        """Run the message `out`, and `into` with its rows; `passed` gets the bytes of each block.

        A message has one COPY, and may have statements before and after it.
        """
        reading, writing = self._source.pgconn, self._target.pgconn
        self._ended = False
        # Both servers begin at the same time: of a small table, that is most of the work.
        self._send(reading, out.as_bytes(self._source))
        self._send(writing, into.as_bytes(self._target))
        self._begin(reading, ExecStatus.COPY_OUT)
        self._begin(writing, ExecStatus.COPY_IN)
        while block := self._read(reading):
            self._write(writing, block)
            passed(len(block))
        self._end(reading)
        while writing.put_copy_end() == 0:
            self._flush(writing)
        self._flush(writing)
        self._end(writing)

    def _send(self, pgconn: PGconn, message: bytes) -> None:
        pgconn.send_query(message)
        self._flush(pgconn)

    def _begin(self, pgconn: PGconn, wanted: ExecStatus) -> None:
        """Pass over the results of a message before its COPY."""
        while (result := self._result(pgconn)) is not None:
            if result.status == wanted:
                return
        raise psycopg.OperationalError("the message had no COPY")

    def _end(self, pgconn: PGconn) -> None:
        """Take the results of a message to its end."""
        while self._result(pgconn) is not None:
            pass

    def _result(self, pgconn: PGconn) -> PGresult | None:
        while pgconn.is_busy():
            if self._ready(pgconn, write=False):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        return result

    def _read(self, pgconn: PGconn) -> bytes:
        """Give the rows that have come, up to about a block; nothing at the end."""
        rows, size, take = [], 0, pgconn.get_copy_data
        while size < BLOCK and not self._ended:
            length, row = take(1)
            if length > 0:
                rows.append(row)
                size += length
            elif length < 0:
                self._ended = True
            elif size >= _ENOUGH:
                break
            elif self._ready(pgconn, write=False):
                pgconn.consume_input()
        return b"".join(rows)

    def _write(self, pgconn: PGconn, block: bytes) -> None:
        try:
            while pgconn.put_copy_data(block) == 0:
                self._flush(pgconn)
            self._flush(pgconn)
        except psycopg.OperationalError:
            self._end(pgconn)  # raises the reason, if the server gave one
            raise

    def _flush(self, pgconn: PGconn) -> None:
        """Send what waits to be sent; the answer to it may have to be read for that."""
        while pgconn.flush():
            if self._ready(pgconn, write=True):
                pgconn.consume_input()

    def _ready(self, pgconn: PGconn, *, write: bool) -> bool:
        """Wait for a while until there is something to read, or room to write."""
        if self._stopped():
            raise Interrupted("stopped while tables were being copied")
        socket = [pgconn.socket]
        readable, _, _ = select.select(socket, socket if write else [], [], _LOOK_S)
        return bool(readable)
