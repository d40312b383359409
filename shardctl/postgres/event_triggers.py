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

QUERIES = queries.load("shardctl.postgres", "event_triggers.sql")

Rehearsal = Literal["init", "read_only", "prune", "rows_move"]

_TAGS: dict[Rehearsal, tuple[str, ...]] = {
    "init": ("CREATE SCHEMA", "CREATE TABLE"),
    "read_only": ("CREATE TRIGGER", "ALTER TABLE"),
    "prune": ("DROP SCHEMA",),
    "rows_move": ("CREATE TABLE", "ALTER TABLE"),
}


class EventTriggerRefuses(ShardctlError):
    """An event trigger that refuses what a command would do."""

    def __init__(self, node: str, triggers: Sequence[str], reason: str) -> None:
        super().__init__(
            f"node {node}: an event trigger ({', '.join(triggers)}) refuses what the command "
            f"does: {reason}",
            hint="let its function pass statements of database.user, or disable it meanwhile: "
            "ALTER EVENT TRIGGER ... DISABLE",
        )


def rehearse(session: psycopg.Connection[Any], node: str, what: Rehearsal) -> None:
    """Try what a command does, if event triggers fire for it; raises EventTriggerRefuses.

    `session` is in autocommit.
    """
    found = session.execute(QUERIES["in_force"], {"tags": list(_TAGS[what])})
    triggers = [name for (name,) in found]
    if not triggers:
        return
    try:
        with session.transaction(force_rollback=True):
            session.execute("SET TRANSACTION READ WRITE")
            session.execute(QUERIES[what])
    except psycopg.Error as error:
        # Without a function around it, what failed is a right that the run needs not.
        if error.diag.context:
            raise EventTriggerRefuses(node, triggers, reason_of(error)) from error
