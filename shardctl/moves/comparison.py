"""Sums over tables on two nodes: their rows are compared, and none leaves its server.

Sessions hold no lock longer than one statement takes. Sessions that kept catalog locks in their own
transactions would wait for each other through a maintenance command queued between them, and
PostgreSQL does not detect that deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Interrupted, ShardctlError
from shardctl.libpq import reason_of
from shardctl.postgres import catalog, queries
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

    Asked = Mapping[NodeName, Sequence[Connection]]

QUERIES = queries.load("shardctl.moves", "comparison.sql")

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

_LOCK_TIMEOUT_MS = 400
"""Less than the default `deadlock_timeout`: PostgreSQL never cancels an operator's command."""
_AGAIN_S = 0.2
_LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_GONE = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.UndefinedObject,
)
"""Errors for a snapshot whose session has ended, or is ending."""


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
    """The source's columns, and how each is compared: a name in `comparison.sql`."""

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


class SnapshotLost(Exception):  # `compare` catches it, no operator sees it
    """The session that held a snapshot has ended."""


@dataclass
class Sessions:
    """Opens and queries sessions with source and target, in the snapshots that are held there."""

    context: MoveContext
    snapshots: Mapping[NodeName, str]
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when nothing more is to be started."""
    _reported: set[NodeName] = field(default_factory=set)

    def open(self, node: NodeName) -> Connection:
        """Open a session; if a lock on a catalog blocks logins, wait until it is released.

        Raises NodeUnavailable, NodeLost, NodeRefused, Interrupted.
        """
        context = self.context
        while True:
            try:
                session = connect(
                    context.topology.nodes[node],
                    context.topology.database,
                    purpose=context.purpose,
                    autocommit=True,
                )
            except NodeUnavailable as error:
                if not isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                    raise
                with context.on(node):  # a lost server raises here
                    context.session(node).execute("SELECT 1")
                self._wait(node, "the server does not complete logins")
                continue
            try:
                with context.on(node):
                    timeout = {"lock_timeout": f"{_LOCK_TIMEOUT_MS}ms"}
                    session.execute(QUERIES["pin"], timeout)
            except BaseException:
                session.close()
                raise
            return session

    def ask(
        self, node: NodeName, session: Connection, query: sql.Composed, *, about: str
    ) -> list[Any]:
        """Return the rows of a query; if locks block it, wait until they are released.

        `about` names the objects that may be locked. Raises SnapshotLost, NodeLost, NodeRefused,
        Interrupted.
        """
        statements = [query]
        if node in self.snapshots:
            begin = QUERIES["begin"].format(snapshot=sql.Literal(self.snapshots[node]))
            statements = [begin, query, sql.SQL("COMMIT").format()]
        message = sql.SQL(";\n").join(statements)
        while True:
            try:
                found = queries.rows_of_all(session, message)
            except _LOCKED:
                self._wait(node, f"{about} is locked")
            except _GONE:
                self._require_snapshot(node, session)
                raise
            else:
                return found[0] if len(statements) == 1 else found[-2]

    def _require_snapshot(self, node: NodeName, session: Connection) -> None:
        """Check that the snapshot still exists; raises SnapshotLost."""
        if node not in self.snapshots:
            return
        begin = QUERIES["begin"].format(snapshot=sql.Literal(self.snapshots[node]))
        try:
            queries.rows_of_all(session, sql.SQL(";\n").join([begin, sql.SQL("COMMIT")]))
        except _GONE as error:
            raise SnapshotLost from error

    def _wait(self, node: NodeName, why: str) -> None:
        if node not in self._reported:
            self._reported.add(node)
            self.context.notice(
                f"node {node}: {why}: the comparison waits, without locks of its own, until that "
                "lock is released (see pg_locks there)"
            )
        if self.stop.wait(_AGAIN_S):
            raise Interrupted(f"node {node}: interrupted: {why}")
