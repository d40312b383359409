"""The replication slot of a move: whether it keeps WAL; how it is dropped, a physical one made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

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


class Slot(NamedTuple):
    """A replication slot; `lost` is why it keeps no WAL any more, None where it does."""

    kind: str
    is_active: bool
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

    `session` is in autocommit. One that has lost its WAL is made again. Raises slot_taken.
    """
    found = look(session, name)
    if found is not None:
        if found.kind != "physical":
            raise taken(name, f"is a {found.kind} one")
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
    lost = found and found.lost
    why = "was dropped" if lost is None else f"is lost: {_LOST.get(lost, lost)}"
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
