"""Event triggers: whether they allow what a move changes in the catalogs of its nodes.

A look fires them in a transaction that it rolls back: a move meets some of them only past its
point of no return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves.preflight import rights, subscriber
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.moves.refusals import PreflightRefused
from shardctl.postgres import blocking
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName


@dataclass(frozen=True, slots=True)
class Events:
    """Names of enabled event triggers, and why one of them refuses a move's statements."""

    triggers: Sequence[str] = ()
    refused: str | None = None


def look(context: Context) -> Events:
    """List the event triggers of the source, and rehearse a move's statements if it has any."""
    if context.need(rights.look):
        raise Unknown
    return _tried(context, context.session, subscribes=False)


def look_at_target(context: Context) -> Events:
    """Do the same on the target, which makes a subscription, too."""
    if context.need(subscriber.look).lacking:
        raise Unknown
    return _tried(context, context.member, subscribes=True)


def _tried(context: Context, session: Connection, *, subscribes: bool) -> Events:
    """Rehearse the statements in a session with either node, if that has event triggers."""
    plan = context.plan
    triggers = blocking.event_triggers(session)
    if not triggers:
        return Events()
    statements = QUERIES["event_rehearsal"].format(
        schema=sql.Identifier(names.retired(plan.schemas[0], plan.id)),
        renamed=sql.Identifier(f"shardctl_{plan.id}"),
        publish=_part(plan, "event_rehearsal_publish", wanted=plan.streams),
        subscribe=_part(plan, "event_rehearsal_subscribe", wanted=plan.streams and subscribes),
    )
    error = blocking.error_of(session, statements)
    return Events(triggers, None if error is None else reason_of(error))


def _part(plan: MovePlan, query: str, *, wanted: bool) -> sql.Composable:
    """Compose a part of the statements that not every move has."""
    return QUERIES[query].format(name=sql.Identifier(plan.slot)) if wanted else sql.SQL("")


def judge(context: Context) -> Iterator[PreflightRefused]:
    """Refuse an event trigger that would stop the move."""
    return _refused(context.plan.source, context.need(look))


def judge_target(context: Context) -> Iterator[PreflightRefused]:
    """Refuse one of the target."""
    return _refused(context.plan.target, context.need(look_at_target))


def _refused(node: NodeName, found: Events) -> Iterator[PreflightRefused]:
    if found.refused is not None:
        yield PreflightRefused(
            f"node {node}",
            "event_trigger",
            f"an event trigger ({listed(found.triggers)}) refuses the move's statements: "
            f"{found.refused}",
            hint="make its function accept statements of database.user, or disable it during the "
            "move: ALTER EVENT TRIGGER ... DISABLE",
        )
