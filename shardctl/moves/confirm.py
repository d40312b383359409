"""Confirm a move: compare every moved table, row by row, with the target's at the cutover.

The source's retired copies no longer change. The target is queried in a snapshot taken before its
promotion, which does not see what applications have written since.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Unfinished
from shardctl.moves import confirm_definitions as definitions
from shardctl.moves import fences
from shardctl.moves import plan as planning
from shardctl.moves.confirm_sessions import QUERIES, Sessions, SnapshotLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

SESSIONS = 2
"""Sessions a node that sum up tables at the same time."""
BLOCKS = 32_768
"""Blocks of a larger table that one statement sums up, 256 MB by default: DDL on the target, and
what queues behind it, waits no longer than that takes."""

ALTERED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
)
"""Errors for a table that clients have dropped, renamed or altered."""

_SENT = sql.SQL("record_send(ROW(t.{}))")
_PLAIN = sql.SQL("t.{}")
_WHOLE = sql.SQL("t.*")  # a column that is called t would be meant by `t` alone


class CopiesDiffer(Unfinished):
    """Moved tables whose copies on source and target are not the same."""

    def __init__(self, move: str, tables: Sequence[str]) -> None:
        shown = "; ".join(tables[:5]) + (f"; and {len(tables) - 5} more" if tables[5:] else "")
        super().__init__(
            f"move {move}: source and target differed at the cutover: {shown}",
            hint="compare these tables by hand: the target serves clients, and prune never drops "
            "the source's retired copies; please report it as a bug. `shardctl moves resume` "
            "closes the move",
        )
        self.tables = tuple(tables)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Number and checksum of a table's rows, and its file, which has the same name on a clone."""

    rows: int
    sum: int
    file: int | None = field(compare=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """The numbers of compared tables and rows, and the tables that could not be compared.

    The target's clients have dropped, renamed or altered those since the cutover.
    """

    tables: int
    rows: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, with its shard's live and retired schema."""

    schema: str
    retired: str
    name: str
    blocks: int = field(compare=False)
    columns: tuple[tuple[str, bool], ...]
    """The source's columns, and whether they hold OIDs of objects."""

    @property
    def refers(self) -> bool:
        """Whether it holds OIDs of objects, which are names in the row's text."""
        return any(refers for _, refers in self.columns)

    def exactly(self) -> sql.Composable:
        """Compose its row from the source's columns.

        An OID of an object is sent as the stored number, however deep in a value it is.
        """
        parts = [
            (_SENT if refers else _PLAIN).format(sql.Identifier(name))
            for name, refers in self.columns
        ]
        return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))

    def parts(self) -> Iterator[sql.Composable]:
        """Compose the conditions for its parts, each of which is summed up separately."""
        if self.blocks <= BLOCKS:
            yield sql.SQL("")
            return
        for first in range(0, self.blocks, BLOCKS):
            here, there = (sql.Literal(f"({block},0)") for block in (first, first + BLOCKS))
            # Rows of the snapshot are in blocks that existed at its time, on both sides.
            part = "part" if first + BLOCKS < self.blocks else "rest"
            yield QUERIES[part].format(from_block=here, to_block=there)


def compare(context: MoveContext) -> Compared | None:
    """Compare all moved tables; None where the target's snapshot is lost.

    A table is locked no longer than `BLOCKS` of it take. A conflicting lock is waited for, with a
    notice. Raises CopiesDiffer, NodeLost, NodeRefused.
    """
    plan = context.plan
    if context.snapshot is None:
        return None
    sessions = Sessions(context)
    with ExitStack() as stack:
        asked: dict[NodeName, list[Connection]] = {plan.target: [], plan.source: []}
        for node, opened in asked.items():
            for _ in range(SESSIONS):
                opened.append(stack.enter_context(closing(sessions.open(node))))
        try:
            return _compare(sessions, asked)
        except SnapshotLost:
            return None


def _compare(sessions: Sessions, asked: Mapping[NodeName, Sequence[Connection]]) -> Compared:
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
    clones = plan.method != planning.STREAM  # their files have the same names at first
    wrong = [
        f"{table.schema}.{table.name}: "
        f"{here.rows} rows on {plan.source}, {there.rows} on {plan.target}"
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
        tuple(f"{table.schema}.{table.name}" for table in left),
    )


def _tables(sessions: Sessions, asked: Mapping[NodeName, Sequence[Connection]]) -> list[_Table]:
    """List the moved tables, the largest first; raises CopiesDiffer unless both sides agree.

    In its snapshot the target has not claimed them, so they have the names that they had on the
    source: the retired ones, or the live ones where only writes were refused.
    """
    plan = sessions.context.plan
    named = {plan.source: plan.retired, plan.target: fences.of(plan).behind(plan)}
    found: dict[NodeName, list[_Table]] = {}
    for node, (session, *_) in asked.items():
        live = dict(zip(named[node], plan.schemas, strict=True))
        retired = dict(zip(named[node], plan.retired, strict=True))
        query = QUERIES["tables"].format(
            referring=QUERIES["referring"], schemas=sql.SQL(", ").join(map(sql.Literal, live))
        )
        with sessions.context.on(node):
            rows = sessions.ask(node, session, query, about="a system catalog")
        found[node] = [
            _Table(
                live[schema], retired[schema], name, blocks, tuple(zip(names, refer, strict=True))
            )
            for schema, name, blocks, names, refer in rows
        ]
    if plan.method != planning.STREAM:  # whose copies have OIDs of their own; its fence has looked
        definitions.tell(sessions, asked, named)
    here, there = set(found[plan.source]), set(found[plan.target])
    absent = [
        f"{t.schema}.{t.name}: different definitions on {plan.source} and {plan.target}"
        for t in sorted(here ^ there, key=lambda t: (t.schema, t.name))
    ]
    if absent:
        raise CopiesDiffer(plan.id, list(dict.fromkeys(absent)))
    return found[plan.source]


def _both(
    sessions: Sessions,
    asked: Mapping[NodeName, Sequence[Connection]],
    tables: Sequence[_Table],
    rows: Mapping[_Table, sql.Composable],
) -> tuple[list[_Sum], list[_Sum | None]]:
    """Sum up tables on source and target at the same time, in the order of `tables`.

    None for a table that the target's clients have dropped or altered.
    """
    plan = sessions.context.plan
    outcomes = fanout.run(
        asked,
        lambda node: _sums(sessions, node, asked[node], tables, rows),
        width=len(asked),
        stop=sessions.stop,
    )
    sums = {outcome.item: outcome.result() for outcome in outcomes}
    return [one for one in sums[plan.source] if one is not None], sums[plan.target]


def _sums(
    sessions: Sessions,
    node: NodeName,
    asked: Sequence[Connection],
    tables: Sequence[_Table],
    rows: Mapping[_Table, sql.Composable],
) -> list[_Sum | None]:
    """Sum up tables on a node over its sessions; whole rows for tables that `rows` lacks."""
    free = deque(asked)
    context = sessions.context

    def one(table: _Table) -> _Sum | None:
        session = free.popleft()
        try:
            return _sum(sessions, node, session, table, rows.get(table, _WHOLE))
        except ALTERED:
            if node == context.plan.source:  # whose retired copies no client may change
                raise
            return None
        finally:
            free.append(session)
            context.progress.advance(node)

    outcomes = fanout.run(tables, one, width=len(asked), stop=sessions.stop)
    with context.on(node):
        return [outcome.result() for outcome in outcomes]


def _sum(
    sessions: Sessions, node: NodeName, session: Connection, table: _Table, row: sql.Composable
) -> _Sum:
    """Sum up one table, part by part; restart if DDL rewrites it meanwhile."""
    schema = table.schema if node == sessions.context.plan.target else table.retired
    name = sql.Identifier(schema, table.name).as_string(session)
    while True:
        found = [
            sessions.ask(
                node,
                session,
                QUERIES["sums"].format(
                    row=row,
                    file=sql.Literal(name),
                    schema=sql.Identifier(schema),
                    table=sql.Identifier(table.name),
                    part=part,
                ),
                about=f"table {table.schema}.{table.name} or a system catalog",
            )[0]
            for part in table.parts()
        ]
        files = {file for _, _, file in found}
        if len(files) == 1:
            return _Sum(
                sum(count for count, _, _ in found), sum(int(s) for _, s, _ in found), *files
            )
