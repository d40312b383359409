"""Event triggers that refuse what a command does, as in a change freeze.

The command's statements are tried on objects of their own, in a transaction that is rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import psycopg

from shardctl.errors import ShardctlError
from shardctl.libpq import reason_of
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import sql

QUERIES = queries.load("shardctl.postgres", "event_triggers.sql")

Rehearsal = Literal["read_only", "prune"]

_TAGS: dict[Rehearsal, tuple[str, ...]] = {
    "read_only": ("CREATE TRIGGER", "ALTER TABLE"),
    "prune": ("DROP SCHEMA",),
}


class EventTriggerRefuses(ShardctlError):
    """An event trigger that refuses what a command would do."""

    def __init__(self, node: str, triggers: Sequence[str], reason: str) -> None:
        super().__init__(
            f"node {node}: an event trigger ({', '.join(triggers)}) rejects the command: {reason}",
            hint="change its function to allow statements of database.user, or disable it "
            "during the command: ALTER EVENT TRIGGER ... DISABLE",
        )


def in_force(session: psycopg.Connection[Any], tags: Sequence[str] | None = None) -> list[str]:
    """Name the event triggers that fire for one of these commands, or for any."""
    given = {"tags": None if tags is None else list(tags)}
    return [name for (name,) in session.execute(QUERIES["in_force"], given)]


def error_of(session: psycopg.Connection[Any], statements: sql.Composed) -> psycopg.Error | None:
    """Try statements, which are rolled back, and give what is wrong with them.

    `session` is in autocommit.
    """
    try:
        with session.transaction(force_rollback=True):
            session.execute("SET TRANSACTION READ WRITE")
            session.execute(statements)
    except psycopg.Error as error:
        return error
    return None


def rehearse(session: psycopg.Connection[Any], node: str, what: Rehearsal) -> None:
    """Try what a command does, if event triggers fire for it; raises EventTriggerRefuses.

    `session` is in autocommit.
    """
    triggers = in_force(session, _TAGS[what])
    error = error_of(session, QUERIES[what].format()) if triggers else None
    # Without a function around it, what failed is a right that the run needs not.
    if error is not None and error.diag.context:
        raise EventTriggerRefuses(node, triggers, reason_of(error)) from error
