"""The physical replication slot of a move: made once, freed, dropped, with no other client."""

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


def slot_taken(name: str, reason: str) -> Refused:
    """Report a replication slot of another client, or of another kind."""
    return Refused(
        "slot_taken",
        f"replication slot {name}: {reason}",
        hint="check pg_replication_slots on that node; shardctl drops only its own slots",
    )


def make(session: Connection, name: str) -> bool:
    """Make the slot, which keeps WAL from now on; return whether that was to do.

    `session` is in autocommit. One that has lost its WAL is made again. Raises slot_taken.
    """
    found = session.execute(_QUERIES["slot"], {"name": name}).fetchone()
    if found is not None:
        kind, wal_status = found[0], found[1]
        if kind != "physical":
            raise slot_taken(name, f"is a {kind} one")
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
    found = session.execute(_QUERIES["slot"], {"name": name}).fetchone()
    return found is not None and found[1] != "lost"


def is_active(session: Connection, name: str) -> bool:
    """Return whether a session uses the slot."""
    return session.execute(_QUERIES["slot_user"], {"name": name}).fetchone() is not None


def require(session: Connection, node: str, name: str) -> None:
    """See that the source of a clone on `node` keeps WAL for it; raises slot_gone."""
    if not keeps(session, name):
        raise Refused(
            "slot_gone",
            f"node {node}: the source no longer retains WAL for this clone: slot "
            f"{name} was dropped or has lost its WAL",
            hint="run `shardctl moves resume` to copy again, or `shardctl moves abort` to "
            "end the move",
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
        raise slot_taken(name, "another session is using it now") from error


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
            raise slot_taken(name, reason)
        if time.monotonic() > deadline:
            raise slot_taken(name, f"{reason}, which does not end")
        time.sleep(_POLL)
