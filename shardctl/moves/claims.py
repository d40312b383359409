"""What every claim does: the transaction by which a target becomes the owner of moved shards.

The target's ids and sequences go on above all that the source has made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.access import fence
from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.postgres import queries
from shardctl.postgres.queries import literals

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan


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
    given = literals(move=plan.id, target=plan.target, map_version=plan.map_version + 1)
    names_back = fence.names_back(plan.id)
    return QUERIES["owning"].format(
        **given, lsn=lsn, within=within, also=also, names_back=names_back
    )


MARGIN = 32
"""By how many steps a target's sequences go beyond the source's, as after a crash."""
PLENTY = 1000
"""A sequence with fewer margins than that until its bound goes on with its next value."""


def warming(context: MoveContext) -> sql.Composed:
    """Compose the query that warms the target's caches for opening blocks."""
    given = literals(schema=context.plan.schemas[0], register=generator.REGISTER)
    return QUERIES["warm"].format(**given)


def opening(context: MoveContext) -> sql.Composed:
    """Compose the statements after which all new ids are above those of the source."""
    return sql.SQL("; ").join(_opening(context))


def performing(context: MoveContext) -> sql.Composed:
    """Compose the same as part of a function, which plans each of them once in a session."""
    perform = sql.SQL("PERFORM b.* FROM ({}) AS b;")
    return sql.SQL("\n").join(perform.format(one) for one in _opening(context))


def _opening(context: MoveContext) -> list[sql.Composed]:
    layout = Layout.of(context.topology.id)
    given = literals(move=context.plan.id, register=generator.REGISTER, counter=generator.COUNTER)
    given |= literals(
        sequence_bits=layout.sequence_bits, epoch_ms=layout.epoch_ms, tick_ms=layout.tick_ms
    )
    blocks = [QUERIES["open"].format(**given)]
    if context.topology.id.generator == "classic":  # only the clock keeps ids apart
        blocks.insert(0, QUERIES["wait_for_clock"].format(**given))
    return blocks
