"""Confirm a move: compare every moved table, row by row, with the target's at the cutover.

The source's retired copies no longer change. The target is queried in a snapshot taken before its
promotion, which does not see what applications have written since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Unfinished
from shardctl.meter import sentences
from shardctl.moves import comparison, fences
from shardctl.moves import confirm_definitions as definitions
from shardctl.moves.confirm_sessions import Sessions, SnapshotLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg import sql

    from shardctl.moves.comparison import Asked, Sum, Table
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName


class CopiesDiffer(Unfinished):
    """Moved tables whose copies on source and target are not the same."""

    def __init__(self, move: str, tables: Sequence[str]) -> None:
        super().__init__(
            f"move {move}: source and target differed at the cutover: {sentences(tables)}",
            hint="compare these tables by hand: the target serves clients, and prune never drops "
            "the source's retired copies; please report it as a bug. `shardctl moves resume` "
            "closes the move",
        )
        self.tables = tuple(tables)


@dataclass(frozen=True, slots=True)
class Compared:
    """The numbers of compared tables and rows, and the tables that could not be compared.

    The target's clients have dropped, renamed or altered those since the cutover.
    """

    tables: int
    rows: int
    left: tuple[str, ...] = ()


def compare(context: MoveContext) -> Compared | None:
    """Compare all moved tables; None where the target's snapshot is lost.

    A table is locked no longer than `comparison.BLOCKS` of it take. A conflicting lock is waited
    for, with a notice. Raises CopiesDiffer, NodeLost, NodeRefused.
    """
    plan = context.plan
    if context.snapshot is None:
        return None
    sessions = Sessions(context, {plan.target: context.snapshot})
    try:
        with comparison.opened(sessions) as asked:
            return _compare(sessions, asked)
    except SnapshotLost:
        return None


def _compare(sessions: Sessions, asked: Asked) -> Compared:
    context = sessions.context
    plan = context.plan
    if fences.of(plan).refuses_writes:
        sessions.settle(plan.source, asked[plan.source][0])
    tables = _tables(sessions, asked)
    for node in asked:
        context.progress.expect(node, "comparing", len(tables), "tables")
    # The same name need not be the same object, nor does an object keep its name.
    rows = {table: table.exactly() for table in tables if table.refers}
    first = list(zip(tables, *_both(sessions, asked, tables, rows), strict=True))
    differing = [table for table, here, there in first if there is not None and here != there]
    # Columns added since the cutover change a row's text, though no value is missing.
    rows = {table: table.exactly() for table in differing}
    second = list(zip(differing, *_both(sessions, asked, differing, rows), strict=True))
    clones = not plan.streams  # their files have the same names at first
    wrong = [
        f"{table}: {here.rows} rows on {plan.source}, {there.rows} on {plan.target}"
        # An old snapshot does not see the rows of a table that is rewritten by DDL.
        + (
            ", which has rewritten the table since the cutover"
            if clones and here.file != there.file
            else ""
        )
        for table, here, there in second
        if there is not None and here != there
    ]
    if wrong:
        raise CopiesDiffer(plan.id, wrong)
    left = [table for table, _, there in (*first, *second) if there is None]
    return Compared(
        len(tables) - len(left),
        sum(here.rows for table, here, _ in first if table not in left),
        tuple(str(table) for table in left),
    )


def _tables(sessions: Sessions, asked: Asked) -> list[Table]:
    """List the moved tables, the largest first; raises CopiesDiffer unless both sides agree.

    In its snapshot the target has not claimed them, so they have the names that they had on the
    source: the retired ones, or the live ones where only writes were refused.
    """
    plan = sessions.context.plan
    named = {plan.source: plan.retired, plan.target: fences.of(plan).behind(plan)}
    found = comparison.tables(sessions, asked, named, plan.retired)
    if not plan.streams:  # whose copies have OIDs of their own; its fence has looked
        definitions.tell(sessions, asked, named)
    if absent := comparison.unlike(plan, found):
        raise CopiesDiffer(plan.id, absent)
    return found[plan.source]


def _both(
    sessions: Sessions,
    asked: Asked,
    tables: Sequence[Table],
    rows: Mapping[Table, sql.Composable],
) -> tuple[list[Sum], list[Sum | None]]:
    """Sum up tables on source and target at the same time, in the order of `tables`.

    Whole rows for tables that `rows` lacks. None for a table that the target's clients have
    dropped or altered.
    """
    plan = sessions.context.plan

    def one(node: NodeName, session: Connection, table: Table) -> Sum | None:
        try:
            return comparison.sum_up(
                sessions, node, session, table, rows.get(table, comparison.WHOLE)
            )
        except comparison.ALTERED:
            if node == plan.source:  # whose retired copies no client may change
                raise
            return None
        finally:
            sessions.context.progress.advance(node)

    sums = comparison.on_both(sessions, asked, one, tables)
    return [one for one in sums[plan.source] if one is not None], sums[plan.target]
