"""The fence: a moved shard's schema loses its name on the source, for everyone, at one instant.

A rename binds superusers, owners, cached plans and prepared statements alike, and costs less
than 0.1 ms a schema. What still runs on the old name is waited for afterwards, by its locks.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import psycopg
from psycopg import sql

from shardctl.errors import Refused, ShardctlError
from shardctl.meter import listed
from shardctl.postgres import blocking, queries
from shardctl.postgres.queries import literals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.access", "fence.sql")

_LOCK_TIMEOUT_MS = 50
_LIFT_TRIES = 1000
_POLL = 0.001
_WRONG_STATE = "SH002"
_TOO_LATE = "SH003"
TRANSIENT = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InternalError_,
    psycopg.errors.DeadlockDetected,
)
"""Open DDL in a schema; a GRANT at the same moment (XX000)."""


class FenceRefused(ShardctlError):
    """The fence could not be put up in time, and is not up."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(
            f"node {node}: the moved schemas could not be renamed in time: {reason}",
            hint="end the DDL or GRANT that blocks them, then run `shardctl moves resume`",
        )


class WritersLeft(ShardctlError):
    """Transactions that write to moved shards and did not end in time."""

    def __init__(self, node: str, pids: Sequence[int | None], holding: Sequence[str] = ()) -> None:
        named = ", ".join("a prepared transaction" if p is None else str(p) for p in pids)
        more = f": {'; '.join(holding)}" if holding else ""
        super().__init__(
            f"node {node}: transactions on the moved shards did not end in time (pids {named})"
            + more,
            hint="run `shardctl moves resume` when they have ended, or add --terminate to end "
            "them; only COMMIT PREPARED or ROLLBACK PREPARED ends a prepared one",
        )
        self.pids = tuple(pids)


def not_after(session: Connection, deadline: float) -> datetime:
    """Give the time on the server's clock that a `deadline` on the monotonic one is."""
    [(now,)] = session.execute("SELECT clock_timestamp()")
    # Reported after the answer, so that the server's waits are not added.
    return cast("datetime", now) + timedelta(seconds=deadline - time.monotonic())


def put_up(
    session: Connection,
    node: str,
    move: str,
    *,
    revision: int,
    deadline: float,
    not_after: datetime,
) -> None:
    """Rename the moved schemas to their retired names, and commit journal state `fenced`.

    `revision` is the journal's at the begin of this attempt: once another session has aborted that,
    nothing is renamed. `deadline` is on the monotonic clock: DDL that is in the way is tried again
    until then. `not_after` is on the server's: one that hung until then renames nothing. Raises
    FenceRefused, fence_too_late, not_at_cutover, and psycopg.OperationalError where the answer was
    lost: `lift` settles that.
    """
    statement = QUERIES["fence"].format(
        first=to_fenced(move, revision=revision, lock_timeout_ms=_LOCK_TIMEOUT_MS),
        renaming=renaming(move, wanted=sql.SQL("true"), not_after=sql.Literal(not_after)),
    )
    _rename(session, node, move, statement, deadline)


def to_fenced(move: str, *, revision: int, lock_timeout_ms: int) -> sql.Composed:
    """Compose the part of a DO block that a fence begins with: the journal shows that it is up."""
    given = literals(move=move, revision=revision, lock_timeout=f"{lock_timeout_ms}ms")
    return QUERIES["to_fenced"].format(**given)


def renaming(move: str, *, wanted: sql.Composable, not_after: sql.Composable) -> sql.Composed:
    """Compose the part of a DO block that renames those schemas that are `wanted`."""
    return QUERIES["renaming"].format(**literals(move=move), wanted=wanted, not_after=not_after)


def close(session: Connection, node: str, move: str, *, deadline: float) -> None:
    """Rename the moved schemas of a move past its point of no return; repeatable.

    A failover of the source may have given them their names back. Raises what `put_up` raises.
    """
    given = literals(move=move, lock_timeout=f"{_LOCK_TIMEOUT_MS}ms")
    statement = QUERIES["fence"].format(
        first=QUERIES["decided"].format(**given),
        renaming=renaming(move, wanted=QUERIES["has_name"], not_after=sql.NULL),
    )
    _rename(session, node, move, statement, deadline)


def lift(session: Connection, move: str, *, revision: int | None = None) -> None:
    """Give the schemas their names back, unless the move is past its point of no return.

    Of the attempt that began at `revision`, or of whichever there is. It cannot be put up any
    more afterwards, even if it was not yet.
    """
    session.execute(lifting(move, after_s=0, revision=revision))


def lifting(move: str, *, after_s: float, revision: int | None) -> sql.Composed:
    """Compose the statement that lifts the fence after a sleep, all within the server.

    It is the source's guard: a backend finishes its statement even when its client is gone.
    """
    waits = literals(seconds=after_s, lock_timeout=f"{_LOCK_TIMEOUT_MS}ms", tries=_LIFT_TRIES)
    given = literals(move=move, revision=revision)
    return QUERIES["lift"].format(**given, **waits, names_back=names_back(move))


def names_back(move: str) -> sql.Composed:
    """Compose the part of a DO block that gives moved schemas their names back.

    What a client has made under such a name in the meantime is renamed, and keeps what it has. The
    block declares `one`, a record.
    """
    return QUERIES["names_back"].format(**literals(move=move))


def drain(session: Connection, node: str, move: str, *, deadline: float) -> bool:
    """Wait until no transaction writes behind the fence; begin after its commit has returned.

    Before that, new statements still resolve the old names. Returns whether it had to wait: those
    that it waited for may have committed what is bound to relations there. Raises WritersLeft,
    unlogged_made.
    """
    waited = False
    while True:
        pids, unlogged = left(session, move)
        if not pids:
            break
        waited = True
        if time.monotonic() > deadline:
            raise WritersLeft(node, pids)
        time.sleep(_POLL)
    if unlogged:
        raise Refused(
            "unlogged_made",
            f"node {node}: {listed(unlogged, most=1)} in moved shards became unlogged during "
            "the cutover, and would be empty on the target",
            hint="run ALTER TABLE ... SET LOGGED, or drop it; then run `shardctl moves resume`",
        )
    return waited


def left(session: Connection, move: str) -> tuple[list[int | None], list[str]]:
    """List processes that can still change something behind the fence, and unlogged tables there.

    None among the processes is a prepared transaction.
    """
    makers, writers, unlogged = queries.rows_of_all(session, sql.SQL(";\n").join(looks(move)))
    pids = dict.fromkeys(pid for (pid,) in (*makers, *writers))
    return list(pids), [name for (name,) in unlogged]


def oids(session: Connection, schemas: Sequence[str]) -> list[int]:
    """List the OIDs of the tables of some schemas."""
    return [oid for (oid,) in session.execute(QUERIES["tables"], {"schemas": list(schemas)})]


def lasting(session: Connection, schemas: Sequence[str], *, since: float) -> list[int | None]:
    """List the processes that write since before a moment; None is a prepared transaction."""
    before = not_after(session, since)
    tables = oids(session, schemas)  # who has taken a number from a sequence is in nobody's way
    held = blocking.held(session, schemas, but=blocking.READERS, tables=tables)
    found = dict.fromkeys(one.by for one in held if one.granted)
    return [
        by.pid or None
        for by in found
        if by.pid == 0
        or (
            (by.since is not None and by.since < before)
            and not (by.statement or "").startswith("autovacuum: ")
        )
    ]


def unlogged(session: Connection, schemas: Sequence[str]) -> list[str]:
    """List unlogged tables and sequences there."""
    given = sql.SQL(", ").join(map(sql.Literal, schemas))
    return [name for (name,) in session.execute(QUERIES["unlogged"].format(schemas=given))]


def looks(move: str) -> list[sql.Composed]:
    """Compose the queries for who makes something behind the fence, who writes, what is unlogged.

    The order counts. Nothing can be begun there any more, so what is made there is committed when
    no transaction makes anything, and is among the relations that are looked at after that.
    """
    there = QUERIES["schemas"].format(**literals(move=move))
    return [QUERIES[n].format(schemas=there) for n in ("making", "writers", "unlogged")]


def _rename(
    session: Connection, node: str, move: str, statement: sql.Composed, deadline: float
) -> None:
    """Run what renames schemas, again and again while DDL is in its way."""
    while True:
        try:
            queries.rows_of_last(session, statement)
        except TRANSIENT as error:
            if time.monotonic() + _LOCK_TIMEOUT_MS / 1000 > deadline:
                raise FenceRefused(node, str(error).splitlines()[0]) from error
            time.sleep(_POLL)
        except psycopg.Error as error:
            require_in_time(error, node, move)
            raise
        else:
            return


def require_in_time(error: psycopg.Error, node: str, move: str) -> None:
    """Raise fence_too_late or not_at_cutover where that is what a server has answered."""
    if error.sqlstate == _TOO_LATE:
        raise Refused(
            "fence_too_late",
            f"node {node}: the server hung until it was too late to rename the moved schemas",
            hint="find out why that server hung, then run `shardctl moves resume`",
        ) from error
    if error.sqlstate == _WRONG_STATE:
        raise Refused(
            "not_at_cutover",
            f"node {node}: move {move} is already past its fence",
            hint=f"run `shardctl moves show {move}` to see its phase",
        ) from error
