"""The fence of a streamed move: locks against writers, then the rename, then a mark in the stream.

A rename alone is no fence for a stream: a writer that commits after it is published under the
retired name, and its rows never arrive. With the locks, no write is open when the mark is made,
so what the target has when it sees the mark is all that there is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.access import fence, structure_digest, write_fence
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.access", "stream_fence.sql")

MARK = "fence"
"""What the row in `shardctl.stream` says that the fence commits."""

_QUICK_MS = 50
"""A client that wants a table that the fence wants waits behind it for so long."""
_TABLE_MS = 0.1
_TRANSIENT = (*fence.TRANSIENT, psycopg.errors.QueryCanceled)


class Left(NamedTuple):
    """What is found behind the fence."""

    busy: bool
    """Whether sessions that write there, or make something, can still change it."""
    unlogged: bool
    changing: bool
    """Whether sessions have changed something there, without a lock, and have not committed."""
    digest: str


def left(session: Connection, move: str, schemas: Sequence[str]) -> Left:
    """Look behind the fence in one message; the digest is of the time after the other looks."""
    looks = [
        *fence.looks(move),
        structure_digest.changing_query(schemas),
        structure_digest.query(session, schemas),
    ]
    makers, writers, unlogged, changing, digest = queries.rows_of_all(
        session, sql.SQL(";\n").join(looks)
    )
    return Left(bool(makers or writers), bool(unlogged), bool(changing), str(digest[0][0]))


def unyielding(session: Connection, schemas: Sequence[str]) -> list[str]:
    """Name the sessions that hold a table there and do not give way to the fence."""
    rows = session.execute(QUERIES["unyielding"], {"schemas": list(schemas)})
    return [f"pid {pid}: {query}" for pid, query in rows]


def put_up(
    session: Connection,
    node: str,
    move: str,
    schemas: Sequence[str],
    *,
    tables: Sequence[int],
    attempt: int,
    revision: int,
    deadline: float,
    not_after: datetime,
) -> None:
    """Lock the tables, rename the schemas, mark the stream, and commit journal state `fenced`.

    All of it is one message: a shardctl that is stopped leaves no lock behind. The parameters are
    those of `fence.put_up`; `attempt` is the number in the mark, and `tables` are the OIDs of
    those that are there. Raises WritersLeft,
    FenceRefused, FenceTooLate, NotAtCutover.
    """
    named = {"schemas": list(schemas)}
    began, timeout_ms = time.monotonic(), _QUICK_MS
    while True:
        all_ms = 2 * timeout_ms + round(len(tables) * _TABLE_MS)
        statement = QUERIES["fence"].format(
            move=sql.Literal(move),
            attempt=sql.Literal(attempt),
            to_fenced=fence.to_fenced(move, revision=revision, lock_timeout_ms=timeout_ms),
            not_after=sql.Literal(not_after),
            lock_timeout=sql.Literal(f"{timeout_ms}ms"),
            statement_timeout=sql.Literal(f"{all_ms}ms"),
        )
        try:
            queries.rows_of_last(session, statement)
        except _TRANSIENT as error:
            left_ms = int(1000 * (deadline - time.monotonic())) - _QUICK_MS
            if left_ms < _QUICK_MS:
                there = _in_the_way(session, schemas)[:3]
                if left := write_fence.lasting(session, tables, since=began):
                    raise fence.WritersLeft(node, left, there) from error
                reason = "; ".join(there) or str(error).splitlines()[0]
                raise fence.FenceRefused(node, reason) from error
            # Those who were held up get their turn.
            time.sleep(_QUICK_MS / 1000)
            found = session.execute(QUERIES["yields_ms"], named).fetchone()
            timeout_ms = min(found[0] if found else _QUICK_MS, left_ms)
        except psycopg.Error as error:
            fence.require_in_time(error, node, move)
            raise
        else:
            return


def _in_the_way(session: Connection, schemas: Sequence[str]) -> list[str]:
    """Name those who hold what the fence locks, one lock of each."""
    rows = session.execute(QUERIES["in_the_way"], {"schemas": list(schemas)})
    return [
        ("a prepared transaction" if pid is None else f"pid {pid} ({who})")
        + f" holds {mode} on {what}"
        for pid, who, mode, what in rows
    ]
