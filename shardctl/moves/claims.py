"""The claim: one transaction by which a target becomes the owner of moved shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.access import fence
from shardctl.moves import blocks, fences
from shardctl.moves.context import Use
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.moves", "claim.sql")

_nothing = partial(sql.SQL, "")


@dataclass(frozen=True, slots=True)
class Beside:
    """What one handover's claim does beside that of every other."""

    first: sql.Composable = field(default_factory=_nothing)
    """Statements, before new blocks of ids are opened, in their transaction."""
    before: sql.Composable = field(default_factory=_nothing)
    """Statements, in the transaction of the claim."""
    within: sql.Composable = field(default_factory=_nothing)
    """Part of a DO block after those; the block declares `one`, a record."""
    last: sql.Composable = field(default_factory=_nothing)
    """A statement, when it has committed."""


def make(context: MoveContext, lsn: str, beside: Beside | None = None) -> list[Any]:
    """Let the target own the moved shards: ids, names, map, journal; repeatable.

    `lsn` is what the target has of the source: it may not have been told that. All goes as one
    message, which the server carries out to its end: guards lead clients to a target that has
    claimed, also if this process is killed meanwhile. Gives the rows of what comes last. Raises
    psycopg.Error.
    """
    plan, beside = context.plan, beside or Beside()
    message = QUERIES["claim"].format(
        first=beside.first,
        blocks=blocks.opening(context),
        move=sql.Literal(plan.id),
        lsn=sql.Literal(lsn),
        before=beside.before,
        within=beside.within,
        names_back=fence.names_back(plan.id),
        drop=fences.of(plan).take_along(plan),
        target=sql.Literal(plan.target),
        map_version=sql.Literal(plan.map_version + 1),
        last=beside.last,
    )
    return queries.rows_of_last(context.session(plan.target, Use.lock), message)


def is_older_map(session: Connection, version: int) -> bool:
    """Lock a node's row, and tell whether its map is not of a later move."""
    row = session.execute(QUERIES["map_version"], {"version": version}).fetchone()
    return row is not None


def write_map(session: Connection, plan: MovePlan) -> None:
    """Write the new owner of the moved shards into a node's map."""
    session.execute(QUERIES["map"], {"target": plan.target, "shards": list(plan.shards)})
