"""Event triggers of the source: whether they allow what a move changes in the catalogs.

The look fires them in a transaction that it rolls back: a move meets some of them only past its
point of no return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.moves import fences
from shardctl.moves.preflight import rights
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.moves.refusals import SourceUnfit, listed
from shardctl.postgres import event_triggers
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection

HINT = (
    "make its function accept statements of database.user, or disable it during the move: "
    "ALTER EVENT TRIGGER ... DISABLE"
)


@dataclass(frozen=True, slots=True)
class Events:
    """Names of enabled event triggers, and why one of them refuses a move's statements."""

    triggers: Sequence[str] = ()
    refused: str | None = None


def look(context: Context) -> Events:
    """List the event triggers of the source, and rehearse a move's statements if it has any."""
    if context.need(rights.look):
        raise Unknown
    return tried(context, context.session)


def tried(context: Context, session: Connection) -> Events:
    """Rehearse the statements in a session with either node, if that has event triggers."""
    plan = context.plan
    triggers = event_triggers.in_force(session)
    if not triggers:
        return Events()
    statements = QUERIES["event_rehearsal"].format(
        schema=sql.Identifier(names.retired(plan.schemas[0], plan.id)),
        renamed=sql.Identifier(f"shardctl_{plan.id}"),
        drop=QUERIES["event_rehearsal_drop"].format()
        if fences.of(plan).refuses_writes
        else sql.SQL(""),
    )
    error = event_triggers.error_of(session, statements)
    return Events(triggers, None if error is None else reason_of(error))


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse an event trigger that would stop the move."""
    found = context.need(look)
    if found.refused is not None:
        yield SourceUnfit(
            context.plan.source,
            "event_trigger",
            f"an event trigger ({listed(found.triggers)}) refuses the move's statements: "
            f"{found.refused}",
            hint=HINT,
        )
