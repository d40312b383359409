"""The write fence: the tables of shards that move refuse writes, and go on being read.

It stands for the fence until the target owns the shards, where a move is `--read-only`. Its
triggers are not those of `read_only`: what an operator has made read-only stays so, and his
`read-only off` lets no writes into what a move has fenced. `fence.lift` lifts it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence
from shardctl.access.fence import FenceRefused, WritersLeft
from shardctl.errors import ShardctlError, Unfinished
from shardctl.meter import listed
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.access", "write_fence.sql")

_QUICK_MS = 50
"""Other sessions that need the same lock wait behind shardctl for so long."""
_SLOWEST_MS = 400
_POLL = 0.001


class TablesUncovered(ShardctlError):
    """Tables of moved shards accept writes behind the fence: they are newer than it."""

    def __init__(self, node: str, tables: Sequence[str]) -> None:
        super().__init__(
            f"node {node}: {listed(tables, most=1)} accepted writes although its shard was fenced",
            hint="wait until the session that creates tables or changes triggers has ended, "
            "then run `shardctl moves resume`",
        )


class TriggersLeft(Unfinished):
    """Readers keep the triggers of an aborted move from being removed."""

    def __init__(self, node: str, move: str) -> None:
        super().__init__(
            f"node {node}: the triggers of move {move} accept writes again, but cannot "
            "be removed: sessions keep reading these tables",
            hint="wait until long reads (pg_dump) end, then run `shardctl moves abort "
            f"{move}` again",
        )


def prepare(session: Connection) -> None:
    """Make what the triggers call; repeatable, and no client notices.

    One that is there stays as it is: it may let writes in where an attempt was aborted.
    """
    if session.execute(QUERIES["has_function"]).fetchone() == (False,):
        session.execute(fence.refusing())


def put_up(
    session: Connection,
    node: str,
    move: str,
    schemas: Sequence[str],
    *,
    revision: int,
    deadline: float,
    not_after: datetime,
) -> None:
    """Let all tables of the moved schemas refuse writes, and commit journal state `fenced`.

    When it returns, no write from before is uncommitted. The parameters are those of
    `fence.put_up`. Raises WritersLeft, FenceRefused, FenceTooLate, NotAtCutover.
    """
    tables = oids(session, schemas)
    timeout, began = _QUICK_MS, time.monotonic()
    while True:
        given = {
            "move": sql.Literal(move),
            "to_fenced": fence.to_fenced(move, revision=revision, lock_timeout_ms=timeout),
            "not_after": sql.Literal(not_after),
            "function": fence.refusing(),
        }
        try:
            queries.rows_of_last(session, QUERIES["put_up"].format(**given))
        except fence.TRANSIENT as error:
            left_ms = int(1000 * (deadline - time.monotonic())) - _QUICK_MS
            if left_ms < _QUICK_MS:
                if left := lasting(session, tables, since=began):
                    raise WritersLeft(node, left) from error
                raise FenceRefused(node, str(error).splitlines()[0]) from error
            row = session.execute(QUERIES["yields_ms"], {"tables": tables}).fetchone()
            # Those who were held up get their turn.
            time.sleep(_QUICK_MS / 1000)
            timeout = min(row[0] if row else min(2 * timeout, _SLOWEST_MS), left_ms)
        except psycopg.Error as error:
            fence.require_in_time(error, node, move)
            raise
        else:
            return


def oids(session: Connection, schemas: Sequence[str]) -> list[int]:
    """List the OIDs of the tables of some schemas."""
    return [oid for (oid,) in session.execute(QUERIES["tables"], {"schemas": list(schemas)})]


def lasting(session: Connection, tables: Sequence[int], *, since: float) -> list[int | None]:
    """List the processes that write since before a moment; None is a prepared transaction."""
    given = {"tables": list(tables), "seconds": time.monotonic() - since}
    return [pid for (pid,) in session.execute(QUERIES["lasting"], given)]


def drain(session: Connection, node: str, schemas: Sequence[str], *, deadline: float) -> None:
    """Wait until no uncommitted table is left there, and see that all refuse.

    Begin after `put_up` has returned. Raises FenceRefused, TablesUncovered, UnloggedMade.
    """
    there = sql.SQL(", ").join(map(sql.Literal, schemas))
    # The order counts, as in `fence.drain`.
    looks = [fence.making(there), QUERIES["uncovered"].format(schemas=there)]
    message = sql.SQL(";\n").join([*looks, fence.QUERIES["unlogged"].format(schemas=there)])
    while True:
        makers, uncovered, unlogged = queries.rows_of_all(session, message)
        if uncovered:
            raise TablesUncovered(node, [name for (name,) in uncovered])
        if not makers:
            break
        if time.monotonic() > deadline:
            named = ", ".join({str(pid or "a prepared transaction"): 0 for pid, _ in makers})
            raise FenceRefused(node, f"uncommitted tables there (pids {named})")
        time.sleep(_POLL)
    if unlogged:
        raise fence.UnloggedMade(node, [name for (name,) in unlogged])


def refusing(session: Connection, schemas: Sequence[str]) -> set[str]:
    """Return to which of these schemas a move refuses writes."""
    rows = session.execute(QUERIES["refusing"], {"schemas": list(schemas)})
    return {schema for (schema,) in rows}


def clear_away(
    session: Connection, node: str, move: str, schemas: Sequence[str], *, deadline: float
) -> None:
    """Remove the triggers of a move that was aborted; repeatable. Raises TriggersLeft.

    They are not in force any more. Each table is waited for by itself, so that those who wait
    behind this wait for a moment only.
    """
    for (table,) in session.execute(QUERIES["left"], {"schemas": list(schemas)}).fetchall():
        statement = QUERIES["clear_away"].format(
            move=sql.Literal(move),
            table=sql.Literal(table),
            lock_timeout=sql.Literal(f"{_QUICK_MS}ms"),
        )
        while True:
            try:
                session.execute(statement)
            except fence.TRANSIENT as error:
                if time.monotonic() > deadline:
                    raise TriggersLeft(node, move) from error
                time.sleep(_QUICK_MS / 1000)
            else:
                break


def drop(move: str) -> sql.Composed:
    """Compose the part of a DO block that removes the triggers; the block declares `one`."""
    return QUERIES["drop"].format(move=sql.Literal(move))
