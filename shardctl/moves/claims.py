"""What every claim does: the transaction by which a target becomes the owner of moved shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.access import fence
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.moves", "claim.sql")
_NOTHING = sql.SQL("")


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
