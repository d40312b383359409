"""Event triggers of the source: whether they let through what a move changes in a catalog.

They are tried in a transaction that is rolled back: some are met only past the point of no return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.moves import fences
from shardctl.moves.preflight import rights
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.moves.refusals import SourceUnfit, listed
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.preflight.subject import Context


@dataclass(frozen=True, slots=True)
class Events:
    """Names of event triggers in force, and why one of them refuses a move's statements."""

    triggers: Sequence[str] = ()
    refused: str | None = None


def look(context: Context) -> Events:
    """Ask a source that is a primary, and try what is refused, if there is any event trigger."""
    session, plan = context.session, context.plan
    if context.need(rights.look):
        raise Unknown
    triggers = [name for (name,) in session.execute(QUERIES["event_triggers"])]
    if not triggers:
        return Events()
    statements = QUERIES["event_rehearsal"].format(
        schema=sql.Identifier(names.retired(plan.schemas[0], plan.id)),
        renamed=sql.Identifier(f"shardctl_{plan.id}"),
        drop=QUERIES["event_rehearsal_drop"].format()
        if fences.of(plan).refuses_writes
        else sql.SQL(""),
    )
    try:
        with session.transaction(force_rollback=True):
            session.execute("SET TRANSACTION READ WRITE")
            session.execute(statements)
    except psycopg.Error as error:
        return Events(triggers, reason_of(error))
    return Events(triggers)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse what would stop the move, perhaps past its point of no return."""
    found = context.need(look)
    if found.refused is not None:
        yield SourceUnfit(
            context.plan.source,
            "event_trigger",
            f"an event trigger ({listed(found.triggers)}) refuses what the move does: "
            f"{found.refused}",
            hint="let its function pass statements of database.user, or disable it during the "
            "move: ALTER EVENT TRIGGER ... DISABLE",
        )
