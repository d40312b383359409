"""Confirm a move: every moved table, row for row, against what the target had at the cutover.

The source's retired copies cannot change any more. The target is asked in the snapshot that
was held before its promotion, which does not see what applications have written since.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Unfinished
from shardctl.postgres import queries
from shardctl.postgres.connection import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

QUERIES = queries.load("shardctl.moves", "confirm.sql")

SESSIONS = 2
"""Sessions a node that sum up tables at the same time."""

_GONE = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.UndefinedObject,
)
"""What a server says of a snapshot whose holder has ended, or is ending."""

_WHOLE = sql.SQL("t.*")  # a column that is called t would be meant by `t` alone


class CopiesDiffer(Unfinished):
    """Moved tables whose copies on source and target are not the same."""

    def __init__(self, move: str, tables: Sequence[str]) -> None:
        shown = "; ".join(tables[:5]) + (f"; and {len(tables) - 5} more" if tables[5:] else "")
        super().__init__(
            f"move {move}: source and target differ in what they had at the cutover: {shown}",
            hint="the target serves, and the source's copies stay under their retired names: "
            "prune never drops them. Compare them, and please report it; "
            "`shardctl moves resume` closes the move",
        )
        self.tables = tuple(tables)


_Sum = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared: numbers of tables and rows."""

    tables: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Table:
    """A table by the shard's live schema, and by the retired one."""

    schema: str
    retired: str
    name: str
    columns: tuple[tuple[str, str | None], ...]
    """As the source has them, and of which type they are compared, where not of their own."""

    def exactly(self) -> sql.Composable:
        """Compose its row from the source's columns."""
        parts = [
            sql.SQL("t.{}::{}").format(sql.Identifier(name), sql.Identifier("pg_catalog", cast))
            if cast
            else sql.SQL("t.{}").format(sql.Identifier(name))
            for name, cast in self.columns
        ]
        return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


def compare(world: World) -> Compared | None:
    """Compare all moved tables; None where nobody holds the target's snapshot any more.

    Raises CopiesDiffer, NodeLost, NodeRefused.
    """
    plan = world.plan
    if world.snapshot is None:
        return None
    with ExitStack() as stack:
        asked: dict[NodeName, list[Connection]] = {plan.target: [], plan.source: []}
        try:
            for node, sessions in asked.items():
                for _ in range(SESSIONS):
                    sessions.append(stack.enter_context(closing(_session(world, node))))
        except _GONE:
            return None
        tables = _tables(world, asked)
        for node in asked:
            world.progress.expect(node, "comparing", len(tables))
        here, there = _both(world, asked, tables, {})
        differing = [t for t, h, o in zip(tables, here, there, strict=True) if h != o]
        # Names of a shard's own tables, kept in a column, and columns added since differ in the
        # text of a row, though nothing is missing.
        rows = {table: table.exactly() for table in differing}
        again, other = _both(world, asked, differing, rows)
        wrong = [
            f"{t.schema}.{t.name}: {h[0]} rows on {plan.source}, {o[0]} on {plan.target}"
            for t, h, o in zip(differing, again, other, strict=True)
            if h != o
        ]
    if wrong:
        raise CopiesDiffer(plan.id, wrong)
    return Compared(len(tables), sum(rows for rows, _ in here))


def _session(world: World, node: NodeName) -> Connection:
    """Open a session that reads; with the target, in the snapshot that is held there."""
    session = connect(
        world.topology.nodes[node], world.topology.database, purpose=world.purpose, autocommit=True
    )
    try:
        with world.on(node):
            session.execute(QUERIES["pin"])
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if node == world.plan.target:
            session.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(world.snapshot))
            )
    except BaseException:
        session.close()
        raise
    return session


def _tables(world: World, asked: Mapping[NodeName, Sequence[Connection]]) -> list[_Table]:
    """List the moved tables, the largest first; both sides must have the same.

    In its snapshot the target has not claimed them yet, so they stand under the names that they
    had on the source: the retired ones, or the live ones where only writes were refused.
    """
    plan = world.plan
    names = {plan.source: plan.retired, plan.target: plan.retired}
    if plan.options.read_only:
        names[plan.target] = plan.schemas
    found: dict[NodeName, list[_Table]] = {}
    for node, sessions in asked.items():
        with world.on(node):
            live = dict(zip(names[node], plan.schemas, strict=True))
            retired = dict(zip(names[node], plan.retired, strict=True))
            rows = sessions[0].execute(QUERIES["tables"], {"schemas": list(live)})
            found[node] = [
                _Table(live[schema], retired[schema], name, _columns(columns, casts))
                for schema, name, columns, casts in rows
            ]
    here, there = set(found[plan.source]), set(found[plan.target])
    absent = [
        f"{t.schema}.{t.name}: not the same table on {plan.source} and {plan.target}"
        for t in sorted(here ^ there, key=lambda t: (t.schema, t.name))
    ]
    if absent:
        raise CopiesDiffer(plan.id, list(dict.fromkeys(absent)))
    return found[plan.source]


def _columns(
    columns: Sequence[str], casts: Sequence[str | None]
) -> tuple[tuple[str, str | None], ...]:
    return tuple(zip(columns, casts, strict=True))


def _both(
    world: World,
    asked: Mapping[NodeName, Sequence[Connection]],
    tables: Sequence[_Table],
    rows: Mapping[_Table, sql.Composable],
) -> tuple[list[_Sum], list[_Sum]]:
    """Sum up tables on source and target at the same time; in the order of `tables`."""
    outcomes = fanout.run(
        asked, lambda node: _sums(world, node, asked[node], tables, rows), width=len(asked)
    )
    sums = {outcome.item: outcome.result() for outcome in outcomes}
    return sums[world.plan.source], sums[world.plan.target]


def _sums(
    world: World,
    node: NodeName,
    sessions: Sequence[Connection],
    tables: Sequence[_Table],
    rows: Mapping[_Table, sql.Composable],
) -> list[_Sum]:
    """Sum up tables on a node over its sessions; rows are whole where none are composed."""
    free = deque(sessions)

    def one(table: _Table) -> _Sum:
        session = free.popleft()
        schema = table.schema if node == world.plan.target else table.retired
        try:
            found = session.execute(
                QUERIES["sums"].format(
                    row=rows.get(table, _WHOLE),
                    schema=sql.Identifier(schema),
                    table=sql.Identifier(table.name),
                )
            ).fetchone()
            if found is None:  # pragma: no cover  # an aggregate gives one row
                raise AssertionError
            return found[0], found[1]
        finally:
            free.append(session)
            world.progress.advance(node)

    outcomes = fanout.run(tables, one, width=len(sessions))
    with world.on(node):
        return [outcome.result() for outcome in outcomes]
