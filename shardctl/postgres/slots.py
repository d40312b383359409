"""The replication slot of a move: whether it keeps WAL; how it is made and dropped.

A logical one is made with the snapshot where its stream begins.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, Refused
from shardctl.libpq import Sent
from shardctl.postgres import blocking, connection, queries
from shardctl.postgres.blocking import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.postgres.connection import Connection, Route

PATIENCE = 20.0
"""Seconds to wait for a session that was asked to end."""

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_POLL = 0.01
_LOCK_TIMEOUT_S = 600.0
_LOOK_S = 0.25


def taken(name: str, reason: str) -> Refused:
    """Report a replication slot that shardctl can neither make nor drop."""
    return Refused(
        "slot_taken",
        f"replication slot {name}: {reason}",
        hint="check pg_replication_slots on that node; shardctl drops only its own slots",
    )


class Slot(NamedTuple):
    """A replication slot; `lost` is why it keeps no WAL any more, None where it does."""

    lost: str | None
    held_bytes: int
    """WAL that it holds back."""
    lag_bytes: int
    """WAL that its target has not confirmed."""


def look(session: Connection, name: str) -> Slot | None:
    """Ask for the slot; None where there is none."""
    row = session.execute(_QUERIES["slot"], {"name": name}).fetchone()
    return None if row is None else Slot._make(row)


def make(session: Connection, name: str) -> bool:
    """Make the slot, which keeps WAL from now on; return whether that was to do.

    `session` is in autocommit. One that has lost its WAL is made again; raises slot_taken.
    """
    found = look(session, name)
    if found is not None:
        if found.lost is None:
            return False
        drop(session, name)
    try:
        session.execute(_QUERIES["make_slot"], {"name": name})
    except psycopg.errors.DuplicateObject:  # another shardctl was quicker; theirs is as good
        return False
    return True


def keeps(session: Connection, name: str) -> bool:
    """Return whether the slot is there and has not lost its WAL."""
    found = look(session, name)
    return found is not None and found.lost is None


def require(session: Connection, node: str, name: str) -> None:
    """See that `node` keeps the WAL of a move; raises slot_gone."""
    found = look(session, name)
    if found is not None and found.lost is None:
        return
    why = "was dropped" if found is None else f"is lost: {found.lost}"
    raise Refused(
        "slot_gone",
        f"node {node}: replication slot {name} {why}",
        hint="run `shardctl moves resume` to copy again, or `shardctl moves abort` to end the move",
    )


def drop(session: Connection, name: str, *, patience_s: float = PATIENCE) -> bool:
    """Drop the slot, if it exists; return whether it did.

    A session that uses it under the slot's own name is ended first; drop a subscription before, for
    its worker would come back. `session` is in autocommit. Raises slot_taken when another session
    uses it, and leaves it.
    """
    deadline = time.monotonic() + patience_s
    while True:
        release(session, name, deadline)
        try:
            return session.execute(_QUERIES["drop_slot"], {"name": name}).fetchone() is not None
        except psycopg.errors.UndefinedObject:  # another session was quicker
            return False
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise taken(name, "another session is using it now") from error


def release(session: Connection, name: str, deadline: float) -> None:
    """End the walsenders that have the slot's name, and wait until no session uses the slot.

    pg_basebackup, clones and subscriptions have it as their application_name. Raises slot_taken
    when it is in use by another client, or by one that has not ended at `deadline`, on
    `time.monotonic()`.
    """
    while True:
        user = session.execute(_QUERIES["end_users"], {"name": name}).fetchone()
        if user is None:
            return
        pid, application, address, _ = user
        reason = (
            f"is in use by {application or 'another session'} (pid {pid}, {address or 'local'})"
        )
        # The name is empty for a process that ends at this moment.
        if (application and application != name) or time.monotonic() > deadline:
            raise taken(name, reason)
        time.sleep(_POLL)


def end_sessions(session: Connection, name: str) -> None:
    """End what an earlier shardctl has left running under this application_name.

    pg_dump, pg_restore and psql go on when the shardctl that began them is killed. `session` itself
    stays, and so does the stream. Raises sessions_left.
    """
    deadline = time.monotonic() + PATIENCE
    while found := session.execute(_QUERIES["end_sessions"], {"name": name}).fetchall():
        if time.monotonic() > deadline:
            raise Incomplete(
                "sessions_left",
                f"sessions with application_name {name} did not end within {PATIENCE:g} s "
                f"(pids {', '.join(str(pid) for (pid,) in found)})",
                hint="see what they wait for (pg_stat_activity), then `shardctl moves resume`",
            )
        time.sleep(_POLL)


@contextmanager
def make_logical(
    route: Route, name: str, *, watch: Connection, report: Callable[[Holder], object]
) -> Iterator[str]:
    """Make the slot on the route's source, and hold the snapshot with which it begins: its name.

    That ends with the block.

    The slot stays. It waits for every transaction of the whole server that has written and not
    ended, for ten minutes at most each. `report` gets each that is in the way, once; `watch`
    is another session with that server. On Ctrl-C, and when `report` raises, there is no slot.
    Raises slot_blocked, slot_taken, NodeUnavailable.
    """
    options = {**route.database.options, "replication": "database"}
    replicating = dataclasses.replace(
        route, database=dataclasses.replace(route.database, options=options)
    )
    with closing(replicating.connect(route.source)) as session:
        timeout = sql.Literal(f"{int(_LOCK_TIMEOUT_S * 1000)}ms")
        session.execute(sql.SQL("SET lock_timeout = {}").format(timeout))
        statement = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')")
        sent, seen = Sent(session, statement.format(sql.Identifier(name))), list[Holder]()
        try:
            while not sent.answered(_LOOK_S):
                for _, one in blocking.holders(watch, [session.info.backend_pid]):
                    if one not in seen:
                        seen.append(one)
                        report(one)
        except BaseException:
            # The server goes on waiting after its client is gone; a cancel ends that, and the slot.
            connection.cancel(session)
            with suppress(psycopg.Error):
                sent.rows()
            raise
        try:
            (((_, _, snapshot, _),),) = sent.rows()
        except psycopg.errors.LockNotAvailable as error:
            who = str(seen[-1]) if seen else "a transaction that has written"
            raise Refused(
                "slot_blocked",
                f"node {route.source.name}: replication slot {name} could not be made: {who} did "
                f"not end within {_LOCK_TIMEOUT_S:g} s",
                hint="end that transaction (find it in pg_stat_activity by xact_start, or in "
                "pg_prepared_xacts), then run `shardctl moves resume`",
            ) from error
        except psycopg.errors.DuplicateObject as error:
            raise taken(name, "there is one of this name already") from error
        yield snapshot or ""
