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

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
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


MARGIN = 32
"""By how many steps a target's sequences go beyond the source's, as after a crash."""
PLENTY = 1000
"""A sequence with fewer margins than that until its bound goes on with its next value."""
_LOCK_TIMEOUT = "100ms"


def near_end(context: MoveContext, source: Connection) -> list[int]:
    """Find the moved sequences that lack the values which a move otherwise skips: their OIDs."""
    given = _given(context) | {
        "schemas": sql.Literal(list(context.plan.schemas)),
        "steps": sql.Literal(PLENTY * MARGIN),
    }
    rows = source.execute(QUERIES["near_end"].format(**given))
    return [oid for (oid,) in rows]


def logging_exactly(context: MoveContext, *, drained: int) -> sql.Composable:
    """Compose statements after which a clone goes on with the next value of such sequences.

    Part of the transaction that commits `drained`, which gives the journal that revision. A server
    logs a sequence 32 values ahead, but not past its bound: a promoted standby would be at its end.
    """
    if not context.near_end:
        return sql.SQL("")
    return QUERIES["log_exactly"].format(
        move=sql.Literal(context.plan.id),
        drained=sql.Literal(drained),
        sequences=sql.Literal(list(context.near_end)),
        lock_timeout=sql.Literal(_LOCK_TIMEOUT),
    )


def warming(context: MoveContext) -> sql.Composed:
    """Compose the query that warms the target's caches for opening blocks."""
    return QUERIES["warm"].format(
        schema=sql.Literal(context.plan.schemas[0]), register=sql.Literal(generator.REGISTER)
    )


def opening(context: MoveContext) -> sql.Composed:
    """Compose the statements after which all new ids are above those of the source."""
    return sql.SQL("; ").join(_opening(context))


def performing(context: MoveContext) -> sql.Composed:
    """Compose the same as part of a function, which plans each of them once in a session."""
    perform = sql.SQL("PERFORM b.* FROM ({}) AS b;")
    return sql.SQL("\n").join(perform.format(one) for one in _opening(context))


def _opening(context: MoveContext) -> list[sql.Composed]:
    given = _given(context)
    blocks = [QUERIES["open"].format(**given)]
    if _by_clock(context):
        blocks.insert(0, QUERIES["wait_for_clock"].format(**given))
    return blocks


def raise_above_source(context: MoveContext) -> None:
    """Raise the target's ids and sequences above those of a source that is closed to clients.

    The target owns the shards.
    """
    plan, given = context.plan, _given(context)
    with context.on(plan.source):
        source = context.session(plan.source)
        ((ticks,),) = source.execute(QUERIES["drawn"].format(**given)).fetchall()
        others = source.execute(QUERIES["last_values"].format(**given)).fetchall()
    given["not_before"] = sql.Literal(ticks)
    with context.on(plan.target):
        target = context.session(plan.target)
        if _by_clock(context):
            target.execute(QUERIES["pass"].format(**given))
        target.execute(QUERIES["raise"].format(**given))
        if others:
            listed = [sql.Literal(list(column)) for column in zip(*others, strict=True)]
            names = ("schemas", "names", "lasts")
            target.execute(QUERIES["advance"].format(**dict(zip(names, listed, strict=True))))


def _by_clock(context: MoveContext) -> bool:
    """Return whether only the clock keeps ids apart, so that a slow clock must be waited for."""
    return context.topology.id.generator == "classic"


def _given(context: MoveContext) -> dict[str, sql.Literal]:
    layout = Layout.of(context.topology.id)
    return {
        "move": sql.Literal(context.plan.id),
        "register": sql.Literal(generator.REGISTER),
        "counter": sql.Literal(generator.COUNTER),
        "sequence_bits": sql.Literal(layout.sequence_bits),
        "time_mask": sql.Literal((1 << layout.usable_time_bits) - 1),
        "epoch_ms": sql.Literal(layout.epoch_ms),
        "tick_ms": sql.Literal(layout.tick_ms),
    }
