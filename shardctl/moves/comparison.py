"""Sums over tables on two nodes: their rows are compared, and none leaves its server."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.libpq import reason_of
from shardctl.moves.confirm_sessions import QUERIES
from shardctl.postgres import catalog, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from shardctl.moves.confirm_sessions import Sessions
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

    Asked = Mapping[NodeName, Sequence[Connection]]

_Found = TypeVar("_Found")

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

_TOO_LARGE = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.InternalError_)
"""What PostgreSQL says of a value whose text does not fit into 1 GB; the latter of much else."""


class Uncomparable(ShardctlError):
    """What the servers cannot sum up."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(
            f"{what} cannot be compared: {reason}",
            hint="compare it by hand, for example with pg_dump of both nodes",
        )


@dataclass(frozen=True, slots=True)
class Sum:
    """Number and checksum of a table's rows, and its file, which has the same name on a clone."""

    rows: int
    sum: int
    file: int | None = field(compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, with its shard's live schema, and the name that this has on the source."""

    schema: str
    on_source: str
    name: str
    blocks: int = field(compare=False)
    columns: tuple[tuple[str, str], ...]
    """The source's columns, and how each is compared: a name in `confirm.sql`."""

    def __str__(self) -> str:
        """Name it as clients do."""
        return f"{self.schema}.{self.name}"

    def row(self, names: Collection[str] | None = None) -> sql.Composed:
        """Compose the number that a row is compared by: of all the source's columns, or of some.

        Columns that the target has got since do not count.
        """
        parts = [
            QUERIES[how].format(column=sql.Identifier(name))
            for name, how in self.columns
            if names is None or name in names
        ]
        return QUERIES["row"].format(columns=sql.SQL(", ").join(parts))


@contextmanager
def opened(sessions: Sessions) -> Iterator[Asked]:
    """Open the sessions with both nodes that sum up tables, until the block ends."""
    plan = sessions.context.plan
    with ExitStack() as stack:
        asked = {
            node: [stack.enter_context(closing(sessions.open(node))) for _ in range(SESSIONS)]
            for node in (plan.target, plan.source)
        }
        if len({queries.one(session, QUERIES["probe"]) for session, *_ in asked.values()}) > 1:
            raise Uncomparable("these nodes' rows", "their versions of PostgreSQL hash differently")
        yield asked


def tables(
    sessions: Sessions,
    asked: Asked,
    named: Mapping[NodeName, Sequence[str]],
    on_source: Sequence[str],
) -> dict[NodeName, list[Table]]:
    """List the moved tables on each node, the largest first.

    `named` has each node's names of the moved schemas, in the order of the plan's, and
    `on_source` those by which the source is asked for its rows.
    """
    plan = sessions.context.plan
    found: dict[NodeName, list[Table]] = {}
    for node, (session, *_) in asked.items():
        live = dict(zip(named[node], plan.schemas, strict=True))
        there = dict(zip(named[node], on_source, strict=True))
        query = QUERIES["tables"].format(
            held=catalog.QUERIES["held"], schemas=sql.SQL(", ").join(map(sql.Literal, live))
        )
        with sessions.context.on(node):
            rows = sessions.ask(node, session, query, about="a system catalog")
        found[node] = [
            Table(live[schema], there[schema], name, blocks, tuple(zip(names, refer, strict=True)))
            for schema, name, blocks, names, refer in rows
        ]
    return found


def unlike(plan: MovePlan, found: Mapping[NodeName, Sequence[Table]]) -> list[str]:
    """Describe the tables that only one node has, or has with other columns."""
    here, there = set(found[plan.source]), set(found[plan.target])
    absent = [
        f"{table}: different definitions on {plan.source} and {plan.target}"
        for table in sorted(here ^ there, key=lambda t: (t.schema, t.name))
    ]
    return list(dict.fromkeys(absent))


def on_both(
    sessions: Sessions,
    asked: Asked,
    work: Callable[[NodeName, Connection, Table], _Found],
    tables: Sequence[Table],
) -> dict[NodeName, list[_Found]]:
    """Do something with all tables on both nodes at the same time; give the results in order."""

    def of_node(node: NodeName) -> list[_Found]:
        free = deque(asked[node])

        def one(table: Table) -> _Found:
            session = free.popleft()
            try:
                return work(node, session, table)
            finally:
                free.append(session)

        outcomes = fanout.run(tables, one, width=len(asked[node]), stop=sessions.stop)
        with sessions.context.on(node):
            return [outcome.result() for outcome in outcomes]

    outcomes = fanout.run(asked, of_node, width=len(asked), stop=sessions.stop)
    return {outcome.item: outcome.result() for outcome in outcomes}


def sum_up(
    sessions: Sessions,
    node: NodeName,
    session: Connection,
    table: Table,
    *,
    blocks: int | None = None,
    passed: Callable[[int], None] = lambda _: None,
) -> Sum:
    """Sum up one table, part by part; restart if DDL rewrites it meanwhile.

    A part has so many `blocks`, or BLOCKS; `passed` gets how many are done. Raises Uncomparable.
    """
    schema = table.schema if node == sessions.context.plan.target else table.on_source
    name = sql.Identifier(schema, table.name).as_string(session)
    while True:
        found = []
        for size, part in catalog.parts(table.blocks, blocks or BLOCKS):
            query = QUERIES["sums"].format(
                hash=table.row(),
                file=sql.Literal(name),
                schema=sql.Identifier(schema),
                table=sql.Identifier(table.name),
                part=part,
            )
            about = f"table {table} or a system catalog"
            try:
                found += sessions.ask(node, session, query, about=about)
            except _TOO_LARGE as error:
                raise Uncomparable(f"node {node}: table {table}", reason_of(error)) from error
            passed(size)
        files = {file for _, _, file in found}
        if len(files) == 1:
            return Sum(
                sum(count for count, _, _ in found), sum(int(s) for _, s, _ in found), *files
            )
