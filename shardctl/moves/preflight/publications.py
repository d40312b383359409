"""Publications of other purposes that would take in what a streamed move makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.preflight import identities
from shardctl.moves.preflight.subject import STREAM
from shardctl.moves.refusals import PreflightRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName


def of_source(context: Context) -> tuple[str, ...]:
    """Ask the source for publications of all tables, or of whole schemas of the move."""
    identities.require_streams(context)
    return _wide(context, context.session)


def of_target(context: Context) -> tuple[str, ...]:
    """Ask the target for the same."""
    identities.require_streams(context)
    return _wide(context, context.member)


def judge_source(context: Context) -> Iterator[PreflightRefused]:
    """Refuse those of the source: their subscribers would get the move's own rows."""
    yield from _refused(
        context.plan.source,
        context.need(of_source),
        "their subscribers would get what the move writes for its target",
    )


def judge_target(context: Context) -> Iterator[PreflightRefused]:
    """Refuse those of the target: their subscribers would get the copy."""
    yield from _refused(
        context.plan.target, context.need(of_target), "their subscribers would get the copy"
    )


def _wide(context: Context, session: Connection) -> tuple[str, ...]:
    given = {"schemas": [*context.plan.schemas, "shardctl"]}
    return tuple(name for (name,) in session.execute(STREAM["wide_publications"], given))


def _refused(node: NodeName, found: tuple[str, ...], why: str) -> Iterator[PreflightRefused]:
    if found:
        yield PreflightRefused(
            f"node {node}",
            "wide_publications",
            f"it has publications FOR ALL TABLES or IN SCHEMA: {listed(found)}; {why}",
            hint="publish a list of tables instead: CREATE PUBLICATION ... FOR TABLE ...",
        )
