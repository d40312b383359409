"""The replication slot of a move: whether it keeps WAL; how a physical one is made and dropped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import Refused
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

PATIENCE = 20.0
"""Seconds to wait for a walsender that was asked to end."""

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_POLL = 0.01
_LOST = {
    "wal_removed": "it held back more WAL than max_slot_wal_keep_size",
    "idle_timeout": "nothing used it for idle_replication_slot_timeout",
}
"""What a server says of a slot that it has invalidated, in words."""


def taken(name: str, reason: str) -> Refused:
    """Report a replication slot that shardctl can neither make nor drop."""
    return Refused(
        "slot_taken",
        f"replication slot {name}: {reason}",
        hint="check pg_replication_slots on that node; shardctl drops only its own slots",
    )


def look(session: Connection, name: str) -> tuple[str, str | None, str | None] | None:
    """Give the slot's kind, its plugin, and what the server says of its WAL; None without one."""
    return session.execute(_QUERIES["slot"], {"name": name}).fetchone()


def make(session: Connection, name: str) -> bool:
    """Make the slot, which keeps WAL from now on; return whether that was to do.

    `session` is in autocommit. One that has lost its WAL is made again. Raises slot_taken.
    """
    found = look(session, name)
    if found is not None:
        kind, _, wal_status = found
        if kind != "physical":
            raise taken(name, f"is a {kind} one")
        if wal_status != "lost":
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
    return found is not None and found[2] != "lost"


def is_active(session: Connection, name: str) -> bool:
    """Return whether a session uses the slot."""
    return session.execute(_QUERIES["slot_user"], {"name": name}).fetchone() is not None


def require(session: Connection, node: str, name: str) -> None:
    """See that `node` keeps the WAL of a move; raises slot_gone."""
    if keeps(session, name):
        return
    found = session.execute(_QUERIES["lost"], {"name": name}).fetchone()
    why = "was dropped" if found is None else f"is lost: {_LOST.get(found[0], found[0])}"
    raise Refused(
        "slot_gone",
        f"node {node}: replication slot {name} {why}",
        hint="run `shardctl moves resume` to copy again, or `shardctl moves abort` to end the move",
    )


def drop(session: Connection, name: str, *, patience_s: float = PATIENCE) -> bool:
    """Drop the slot, if it exists; return whether it did.

    A session that uses it under the slot's own name is ended first. `session` is in autocommit.
    Raises slot_taken when another session uses it, and leaves it.
    """
    release(session, name, patience_s=patience_s)
    try:
        return session.execute(_QUERIES["drop_slot"], {"name": name}).fetchone() is not None
    except psycopg.errors.UndefinedObject:  # another session was quicker
        return False
    except psycopg.errors.ObjectInUse as error:
        raise taken(name, "another session is using it now") from error


def release(session: Connection, name: str, *, patience_s: float = PATIENCE) -> None:
    """End the walsenders that have the slot's name, and wait until no session uses the slot.

    pg_basebackup and clones have it as their application_name. Raises slot_taken when it is
    in use by another client, or too slow to end.
    """
    deadline = time.monotonic() + patience_s
    while True:
        session.execute(_QUERIES["end_senders"], {"name": name})
        user = session.execute(_QUERIES["slot_user"], {"name": name}).fetchone()
        if user is None:
            return
        pid, application, address = user
        reason = (
            f"is in use by {application or 'another session'} (pid {pid}, {address or 'local'})"
        )
        # The name is empty for a process that ends at this moment.
        if application and application != name:
            raise taken(name, reason)
        if time.monotonic() > deadline:
            raise taken(name, f"{reason}, which does not end")
        time.sleep(_POLL)
