"""Sums over tables on two nodes: their rows are compared, and none leaves its server.

Sessions hold no lock longer than one statement takes. Sessions that kept catalog locks in their own
transactions would wait for each other through a maintenance command queued between them, and
PostgreSQL does not detect that deadlock.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Interrupted, ShardctlError
from shardctl.libpq import reason_of
from shardctl.meter import BYTES, SHOWN, listed
from shardctl.postgres import catalog, queries
from shardctl.postgres.logical.copying import Throttle

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from shardctl.fanout import Outcome, Progress
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

QUERIES = queries.load("shardctl.moves", "comparison.sql")

_Found = TypeVar("_Found")

SESSIONS = 2
"""Sessions a node that sum up tables at the same time."""
BLOCKS = 8_192
"""Blocks of a larger table that one statement sums up, 64 MB by default: DDL on the target, and
what queues behind it, waits no longer than that takes; so a rate is kept, too."""
_LEAST_BLOCKS = 128
_BLOCK = 8192

_ALTERED = (
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
def opened(
    context: MoveContext,
    snapshots: Mapping[NodeName, str],
    stop: threading.Event,
    *,
    strict: bool = False,
) -> Iterator[Sessions]:
    """Open the sessions with both nodes that sum up tables, until the block ends.

    When `stop` is set, nothing more is started. With `strict`, the first keys that differ are
    looked for, and a table that cannot be compared raises Uncomparable or NodeRefused. Raises
    NodeUnavailable, Uncomparable.
    """
    nodes = (context.plan.target, context.plan.source)
    sessions = Sessions(context, snapshots, stop, strict, {node: [] for node in nodes})
    with ExitStack() as stack:
        for node in nodes * SESSIONS:
            session = stack.enter_context(closing(context.beside(node)))
            with context.on(node):
                session.execute(QUERIES["pin"], {"lock_timeout": f"{_LOCK_TIMEOUT_MS}ms"})
            sessions.of[node].append(session)
        probes = {queries.one(session, QUERIES["probe"]) for session, *_ in sessions.of.values()}
        if len(probes) > 1:
            raise Uncomparable("these nodes' rows", "their versions of PostgreSQL hash differently")
        yield sessions


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison has found.

    `tables`, `rows` and `bytes` count what was equal, and `differing` describes what was not.
    `left` are tables that could not be compared: the target's clients have dropped, renamed or
    altered those, or PostgreSQL cannot write a value of theirs as text.
    """

    tables: int
    rows: int
    bytes: int
    differing: tuple[str, ...]
    left: tuple[str, ...]


def compare(
    sessions: Sessions,
    named: Mapping[NodeName, Sequence[str]],
    shown: Progress,
    max_rate: float | None = None,
) -> Compared:
    """Compare all moved tables on both nodes at the same time, the largest first.

    `named` has each node's names of the moved schemas, in the order of the plan's; each node reads
    `max_rate` bytes a second at most. Raises SnapshotLost, Interrupted, NodeLost, NodeRefused.
    """
    plan = sessions.context.plan
    found = _tables(sessions, named)
    here, there = set(found[plan.source]), set(found[plan.target])
    alone = sorted(here ^ there, key=lambda t: (t.schema, t.name))
    differing = [
        f"{name}: different definitions on {plan.source} and {plan.target}"
        for name in dict.fromkeys(map(str, alone))
    ]
    tables = [table for table in found[plan.source] if table in there]
    for node in named:
        shown.expect(node, "comparing", sum(table.blocks for table in tables) * _BLOCK, BYTES)
    sums = _on_both(sessions, tables, shown, max_rate)
    equal, left = [], []
    for table, one, other in zip(tables, *sums, strict=True):
        if one is None or other is None:
            left.append(str(table))
        elif one == other:
            equal.append((one.rows, table.blocks * _BLOCK))
        else:
            text = f"{table}: {one.rows:,} rows on {plan.source}, {other.rows:,} on {plan.target}"
            if sessions.strict and len(differing) < SHOWN:
                text += _keys_of(sessions, table, one.rows)
            elif not plan.streams and one.file != other.file:
                # A clone's files have the same names at first. An old snapshot does not see the
                # rows of a table that is rewritten by DDL.
                text += ", which has rewritten the table since the cutover"
            differing.append(text)
    rows, size = sum(rows for rows, _ in equal), sum(size for _, size in equal)
    return Compared(len(equal), rows, size, tuple(differing), tuple(left))


def _tables(
    sessions: Sessions, named: Mapping[NodeName, Sequence[str]]
) -> dict[NodeName, list[Table]]:
    """List the moved tables on each node, the largest first."""
    plan = sessions.context.plan
    found: dict[NodeName, list[Table]] = {}
    for node, there in named.items():
        names = dict(zip(there, zip(plan.schemas, named[plan.source], strict=True), strict=True))
        query = QUERIES["tables"].format(
            held=catalog.QUERIES["held"], schemas=sql.SQL(", ").join(map(sql.Literal, there))
        )
        found[node] = [
            Table(*names[schema], name, blocks, tuple(zip(columns, compared, strict=True)))
            for schema, name, blocks, columns, compared in sessions.look(node, query)
        ]
    return found


def _on_both(
    sessions: Sessions, tables: Sequence[Table], shown: Progress, max_rate: float | None
) -> list[list[Sum | None]]:
    """Sum up tables on source and target at the same time; None is one that is left out."""
    context, source = sessions.context, sessions.context.plan.source
    size = BLOCKS if max_rate is None else min(BLOCKS, max(_LEAST_BLOCKS, int(max_rate) // _BLOCK))

    def of_node(node: NodeName) -> list[Sum | None]:
        free, throttle = deque(sessions.of[node]), Throttle(max_rate, sessions.stop)

        def passed(blocks: int) -> None:
            shown.advance(node, blocks * _BLOCK)
            throttle.passed(blocks * _BLOCK)

        def one(table: Table) -> Sum | None:
            session = free.popleft()
            try:
                return _sum_up(sessions, node, session, table, size=size, passed=passed)
            except _ALTERED:
                if sessions.strict or node == source:  # whose retired copies no client may change
                    raise
            except Uncomparable as error:
                if sessions.strict:
                    raise
                context.notice(error.message)
            finally:
                free.append(session)
            return None

        with context.on(node):
            return _results(sessions, fanout.run(tables, one, width=SESSIONS, stop=sessions.stop))

    both = (source, context.plan.target)
    return _results(sessions, fanout.run(both, of_node, width=2, stop=sessions.stop))


def _results(sessions: Sessions, outcomes: Sequence[Outcome[Any, _Found]]) -> list[_Found]:
    """Give the results, or raise the first error; the rest is not begun then."""
    for outcome in sorted(outcomes, key=lambda one: isinstance(one.error, Interrupted)):
        if outcome.error is not None:
            sessions.stop.set()
            raise outcome.error
    if sessions.stop.is_set():
        raise Interrupted("stopped while the copies were compared")
    return [outcome.result() for outcome in outcomes]


def _sum_up(
    sessions: Sessions,
    node: NodeName,
    session: Connection,
    table: Table,
    *,
    size: int,
    passed: Callable[[int], None],
) -> Sum:
    """Sum up one table, `size` blocks at a time; restart if DDL rewrites it meanwhile.

    `passed` gets how many are done. Raises Uncomparable.
    """
    schema = table.schema if node == sessions.context.plan.target else table.on_source
    name = sql.Identifier(schema, table.name).as_string(session)
    while True:
        found = []
        for blocks, part in catalog.parts(table.blocks, size):
            query = QUERIES["sums"].format(
                hash=table.row(),
                file=sql.Literal(name),
                schema=sql.Identifier(schema),
                table=sql.Identifier(table.name),
                part=part,
            )
            try:
                found += sessions.ask(node, session, query)
            except _TOO_LARGE as error:
                raise Uncomparable(f"node {node}: table {table}", reason_of(error)) from error
            passed(blocks)
        files = {file for _, _, file in found}
        if len(files) == 1:
            return Sum(
                sum(count for count, _, _ in found), sum(int(s) for _, s, _ in found), *files
            )


_ROWS = 256
"""About how many rows a group of keys has."""
_BITS = 16


def _keys_of(sessions: Sessions, table: Table, rows: int) -> str:
    """Name the first keys that only one node has, and those whose rows differ.

    `rows` is about how many rows the table has; empty where the table has no key.
    """
    plan = sessions.context.plan
    source, target = plan.source, plan.target
    place = sql.Identifier(table.on_source, table.name).as_string(None)
    found = sessions.look(source, QUERIES["key"].format(table=sql.Literal(place)))
    names = [name for (name,) in found]
    if not names:
        return ""
    columns = [sql.SQL("t.{}").format(sql.Identifier(name)) for name in names]
    key = sql.SQL("ROW({})").format(sql.SQL(", ").join(columns))
    mask = (1 << min(_BITS, max(0, (rows // _ROWS).bit_length()))) - 1

    def ask(node: NodeName, name: str, **more: sql.Composable) -> list[Any]:
        query = QUERIES[name].format(
            key=key,
            row_hash=table.row(),
            key_hash=table.row(names),
            mask=sql.Literal(mask),
            schema=sql.Identifier(table.schema if node == target else table.on_source),
            table=sql.Identifier(table.name),
            **more,
        )
        return sessions.look(node, query)

    groups = {number for number, *_ in {*ask(source, "groups")} ^ {*ask(target, "groups")}}
    some = sql.Literal(sorted(groups)[:SHOWN])
    here, there = dict(ask(source, "rows", groups=some)), dict(ask(target, "rows", groups=some))
    only = {source: here.keys() - there.keys(), target: there.keys() - here.keys()}
    parts = [f"{one} only on {node}" for node, keys in only.items() for one in sorted(keys)]
    parts += [f"{one} differs" for one in sorted(here) if there.get(one, here[one]) != here[one]]
    return f" (key ({', '.join(names)}): {listed(parts)})" if parts else ""


class SnapshotLost(Exception):  # `compare` catches it, no operator sees it
    """The session that held a snapshot has ended."""


@dataclass
class Sessions:
    """Queries sessions with source and target, in the snapshots that are held there."""

    context: MoveContext
    snapshots: Mapping[NodeName, str]
    stop: threading.Event
    strict: bool
    of: Mapping[NodeName, list[Connection]]
    _reported: set[NodeName] = field(default_factory=set)

    def look(self, node: NodeName, query: sql.Composed) -> list[Any]:
        """Do what `ask` does in the first session with a node; raises NodeRefused, too."""
        with self.context.on(node):
            return self.ask(node, self.of[node][0], query)

    def ask(self, node: NodeName, session: Connection, query: sql.Composed) -> list[Any]:
        """Return the rows of a query; if locks block it, wait until they are released.

        Raises SnapshotLost, psycopg.Error, Interrupted.
        """
        while True:
            if self.stop.is_set():
                raise Interrupted(f"node {node}: stopped while the copies were compared")
            try:
                if node not in self.snapshots:
                    return session.execute(query).fetchall()
                # In one message: a shardctl that is stopped now leaves no lock, and no snapshot.
                parts = [sql.SQL("BEGIN"), self._seeing(node), query, sql.SQL("COMMIT")]
                return queries.rows_of_all(session, sql.SQL(";\n").join(parts))[-2]
            except _LOCKED:
                if node not in self._reported:
                    self._reported.add(node)
                    self.context.notice(
                        f"node {node}: a moved table or a system catalog is locked: the comparison "
                        "waits, without locks of its own, until that lock is released (see "
                        "pg_locks there)"
                    )
                self.stop.wait(_AGAIN_S)
            except _GONE:
                self._require_snapshot(node, session)
                raise

    def _seeing(self, node: NodeName) -> sql.Composed:
        return QUERIES["see"].format(snapshot=sql.Literal(self.snapshots[node]))

    def _require_snapshot(self, node: NodeName, session: Connection) -> None:
        """Check that what was there at the cutover can still be seen; raises SnapshotLost."""
        if node in self.snapshots:
            try:
                with session.transaction():
                    session.execute(self._seeing(node))
            except _GONE as error:
                raise SnapshotLost from error
