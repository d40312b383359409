"""The claim: one transaction by which a target becomes the owner of moved shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.access import fence
from shardctl.moves import blocks
from shardctl.moves.context import Use
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.moves", "claim.sql")
_NOTHING = sql.SQL("")

_nothing = partial(sql.SQL, "")


@dataclass(frozen=True, slots=True)
class Beside:
    """Statements that a clone adds to the claim."""

    first: sql.Composable = field(default_factory=_nothing)
    """Statements before the new id blocks open, in their transaction."""
    before: sql.Composable = field(default_factory=_nothing)
    """Statements in the claim's transaction."""
    within: sql.Composable = field(default_factory=_nothing)
    """Part of a DO block after those; the block declares `one`, a record."""
    last: sql.Composable = field(default_factory=_nothing)
    """A statement after the commit."""


def make(context: MoveContext, lsn: str, beside: Beside | None = None) -> list[Any]:
    """Make the target the owner of the moved shards: ids, names, map, journal; repeatable.

    `lsn` is the source's position that the target has reached: its journal may lack it. The server
    gets one message and executes all of it, even if this process is killed: guards route clients to
    a target that has claimed. Returns the rows of the last statement. Raises psycopg.Error.
    """
    plan, beside = context.plan, beside or Beside()
    message = QUERIES["claim"].format(
        first=beside.first,
        blocks=blocks.opening(context),
        before=beside.before,
        owning=owning(plan, sql.Literal(lsn), within=beside.within),
        last=beside.last,
    )
    return queries.rows_of_last(context.session(plan.target, Use.lock), message)


def owning(
    plan: MovePlan,
    lsn: sql.Composable,
    *,
    within: sql.Composable = _NOTHING,
    also: sql.Composable = _NOTHING,
) -> sql.Composed:
    """Compose what makes the target the owner: part of a DO block or of a function.

    `lsn` is what the target has of the source, `within` what only a clone does, and `also`
    what only one writes into the journal.
    """
    return QUERIES["owning"].format(
        move=sql.Literal(plan.id),
        lsn=lsn,
        within=within,
        also=also,
        names_back=fence.names_back(plan.id),
        target=sql.Literal(plan.target),
        map_version=sql.Literal(plan.map_version + 1),
    )


def is_older_map(session: Connection, version: int) -> bool:
    """Lock a node's row, and return whether its map is older than `version`."""
    row = session.execute(QUERIES["map_version"], {"version": version}).fetchone()
    return row is not None
