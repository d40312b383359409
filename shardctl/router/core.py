"""What both faces have in common: all that needs no server, and what an application may choose."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import errors

from shardctl.router import places
from shardctl.router.errors import DeadlinePassed, NoConnection, is_refusal, pauses
from shardctl.router.places import Known, Source
from shardctl.state import map as maps
from shardctl.topology.model import NodeName, ShardId, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from shardctl.router.places import Through
    from shardctl.router.statements import Answer
    from shardctl.state.map import NodeMap
    from shardctl.topology.keys import Key

STANDING = (
    b"SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)"
    b" AND pg_catalog.has_schema_privilege(oid, 'USAGE')"
)
"""Which of these schemas are not fenced."""
FRESH_S = 0.01
"""How old another caller's answer may be to be used again."""
ASK_S = 2.0
"""The least time for a node to answer; a node that hangs delays callers no longer than this."""
SPARE_S = 0.05
"""The same for a node that owned no shards, while callers have waited no longer."""
CAUGHT = (
    "nothing was written: a statement of the transaction has failed, and its error was caught; use"
    " transaction() of the connection around statements that may fail"
)
COPIED = 50
"""Rows a shard from which COPY is quicker than INSERT, though it takes a round trip a shard."""
COPIED_ALIKE = {int, str, type(None)}
"""Of these, COPY writes what INSERT does. It writes other text of a UUID into a column of text, and
refuses a Decimal in one of integers.
"""

Opened = tuple["ShardId", Any]
"""A shard with an open transaction, and its connection."""

_CHANGES = (
    b"SELECT DISTINCT n.nspname::text, a.pid, a.application_name, a.state_change"
    b" FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_class AS c ON c.oid = l.relation"
    b" JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
    b" JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid WHERE c.relkind IN ('r', 'p') AND"
    b" l.mode IN"
    b" ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
)
CHANGING = _CHANGES + b" AND a.pid = pg_catalog.pg_backend_pid() LIMIT 1"
"""Whether a transaction has changed tables.

Not what SELECT ... FOR UPDATE takes: it changes nothing that others read.
"""
IN_TESTS = "shardctl.in_tests"
"""A server parameter that nodes of test fleets have in their topology."""
CHANGED = _CHANGES + (
    b" AND a.datname = pg_catalog.current_database() AND a.state = 'idle in transaction'"
    b" AND n.nspname = ANY (%s)"
)
"""Which sessions have changed tables of these schemas, and wait for their clients."""
LASTING_S = 1.0
"""How long a session waits for its client before that is taken to wait for the router's call."""
SHARDS_A_STATEMENT = 256
"""Each takes locks for its table and indexes; a server has a few thousand locks."""

_UNTOLD = nullcontext()

_open: weakref.WeakSet[Routed] = weakref.WeakSet()
"""All open databases of this process."""
_parents: list[Any] = []
"""What a child keeps of its parent's and never uses: asyncio would complain of its lost tasks."""
_LATE = ("shardctl.topology.loader", "shardctl.topology.routes")
"""What parts of the router import when they first need it."""


class Routed:
    """A sharded database as far as it is the same with threads and with asyncio."""

    _nodes: Any

    def __init__(
        self,
        source: str | os.PathLike[str] | Topology,
        *,
        through: Through | None = None,
        nodes: Mapping[str, str] | None = None,
        connect: Mapping[str, Any] | None = None,
        pool: PoolSettings | None = None,
        patience: float = 5.0,
        on_statement: Callable[[StatementEvent], object] | None = None,
    ) -> None:
        """Take the map of a topology; raises TopologyMissing, TopologyInvalid, NoNodeAliases."""
        self._known = Known(patience)
        self._settings = pool or PoolSettings()
        self._source: Source | None = None
        self._on_statement = on_statement
        self._opened: dict[Any, list[Opened]] = {}
        self._set_up()
        _open.add(self)
        given = dict(connect or {})
        if isinstance(source, str) and ("=" in source or "://" in source):
            self._source = Source(places.first_of(source, given), dict(nodes or {}), given)
            return
        topology = source if isinstance(source, Topology) else _load(source)
        self._known.begin(maps.Map.of(topology), places.of_topology(topology, through, given))
        self._known.in_tests = any(IN_TESTS in n.settings for n in topology.nodes.values())

    @property
    def map_version(self) -> int:
        """The version of the map that is known; 0 is the topology file's. Raises NotOpen."""
        return self._known.map.version

    @property
    def shard_count(self) -> int:
        """How many shards there are; raises NotOpen."""
        return len(self._known.map.owners)

    def shard_of(self, key: Key) -> ShardId:
        """Give the shard of a key: an integer, a string or a UUID.

        Raises key_unsupported, key_not_an_id, NotOpen.
        """
        return self._known.map.shard_of(key)

    def shard_of_id(self, number: int) -> ShardId:
        """Give the shard that made an id; raises IdOutOfRange, ShardNotFound, NotOpen."""
        return self._known.require(self._known.map.layout.decode(number).shard)

    def schema_of(self, shard: int) -> str:
        """Name the schema of a shard; raises ShardNotFound, NotOpen."""
        return self._known.schemas[self._known.require(shard)]

    def node_of(self, shard: int) -> NodeName:
        """Name the node that owns a shard, by the map that is known.

        Raises ShardNotFound, NotOpen.
        """
        return self._known.map.owners[self._known.require(shard)]

    def _shard(self, key: Key | None, number: int | None) -> ShardId:
        """Give the shard of a key, or with a number."""
        if (key is None) is (number is None):
            raise TypeError("pass a shard key, or number= for a shard's number")
        return (
            self._known.map.shard_of(key) if key is not None else self._known.require(number or 0)
        )

    def _told(
        self,
        call: str,
        table: str | None,
        node: NodeName,
        shards: Sequence[ShardId],
        *,
        repeated: bool = False,
    ) -> AbstractContextManager[None]:
        """Tell `on_statement`, if there is one, of what is done in the block."""
        if self._on_statement is None:
            return _UNTOLD
        return _telling(self._on_statement, (call, table, node, shards), repeated)

    def _set_up(self) -> None:
        """Make what the face needs of its own: locks, and no pools yet."""
        raise NotImplementedError

    @contextmanager
    def _noted(self, who: Any, shard: ShardId, connection: Any) -> Iterator[None]:
        """Know of a transaction of the thread or task that calls, until it ends."""
        self._opened.setdefault(who, []).append((shard, connection))
        try:
            yield
        finally:
            mine = self._opened.get(who, [])  # none in a child of the process
            if (shard, connection) in mine:
                mine.remove((shard, connection))
            if not mine:
                self._opened.pop(who, None)

    def _begin_in_child(self) -> None:
        """Leave pools, locks and threads to the parent, and begin with none."""
        _parents.append(vars(self).copy())
        self._opened = {}
        self._known.renew_lock()
        self._set_up()

    def stats(self) -> Stats:
        """Return the router's counters and those of psycopg's pools."""
        found = self._known
        version = None if found.found is None else found.map.version
        counts = {node: pool.get_stats() for node, pool in dict(self._nodes.pools).items()}
        return Stats(version, found.reads, found.repeated, counts)

    def _parts(self, shards: Sequence[ShardId]) -> list[tuple[NodeName, Sequence[ShardId]]]:
        """Part shards into those that one statement asks, with their node."""
        size = SHARDS_A_STATEMENT
        return [
            (node, owned[first : first + size])
            for node, owned in self._known.by_node(shards).items()
            for first in range(0, len(owned), size)
        ]


def grouped(
    rows: Sequence[Mapping[str, Any]], key_field: str, shard_of: Callable[[Any], ShardId]
) -> tuple[tuple[str, ...], dict[ShardId, list[tuple[Any, ...]]]]:
    """Give the fields of rows, and the rows of each shard; raises ValueError if fields differ."""
    fields, names = tuple(rows[0]), rows[0].keys()
    found: defaultdict[ShardId, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        if row.keys() != names:
            raise ValueError(f"rows with different fields: {fields} and {tuple(row)}")
        found[shard_of(row[key_field])].append(tuple(map(row.__getitem__, fields)))
    return fields, found


def are_copied(rows: Sequence[Mapping[str, Any]], shards: int) -> bool:
    """Return whether rows for so many shards are better copied, and come out the same."""
    kinds = {type(value) for row in rows for value in row.values()}
    return len(rows) >= COPIED * shards and kinds <= COPIED_ALIKE


def answers(
    parts: Sequence[Sequence[ShardId]], outcomes: Sequence[Any], until: float | None
) -> list[Answer]:
    """Join the answers for parts of the shards.

    Raises DeadlinePassed, and what the first node to fail has raised.
    """
    if until is not None and time.monotonic() >= until:
        ended = (TimeoutError, NoConnection, errors.QueryCanceled)
        pairs = zip(parts, outcomes, strict=True)
        if late := [shard for part, one in pairs if isinstance(one, ended) for shard in part]:
            raise DeadlinePassed(late)
    for one in outcomes:
        if isinstance(one, BaseException):
            raise one
    return [answer for found in outcomes for answer in found]


def reported(answer: Answer) -> NodeMap | None:
    """Take a node's map from its answer; None where init has not finished."""
    return maps.of_row(answer.rows[0]) if answer.rows else None


class Outwaiting:
    """How long what begins a transaction is tried again while its pooler has no server."""

    def __init__(self, patience_s: float, until: float | None) -> None:
        self._patience_s = patience_s
        self._until = math.inf if until is None else until
        self._refused: errors.ProtocolViolation | None = None
        self._waits = pauses()

    def seconds(self) -> float | None:
        """Tell how long the next attempt may wait for a connection; None is the pool's timeout."""
        return None if self._refused is None else max(0.0, self._until - time.monotonic())

    def after(self, error: NoConnection | errors.ProtocolViolation) -> float:
        """Tell how long to wait after an attempt; raises its error, or the last one that counts."""
        if isinstance(error, NoConnection):
            raise self._refused or error  # it had little time left, and says less
        now = time.monotonic()
        if self._refused is None:
            self._until = min(self._until, now + self._patience_s)
        self._refused = error
        if not is_refusal(error) or now >= self._until:
            raise error
        return min(next(self._waits), self._until - now)


def health(known: Known, node: NodeName, answer: Answer, took_ms: float) -> NodeHealth:
    """Judge what a node has answered; raises AnotherCluster."""
    told = reported(answer)
    if told is None:
        unfinished = "its map is incomplete: `shardctl init` has not finished"
        return NodeHealth(unfinished, took_ms, None)
    known.require_same(told)
    other = None if told.node == node else f"connected to node {told.node} instead"
    return NodeHealth(other, took_ms, told.map.version)


def given_up(limit: float | None) -> float:
    """Tell when a node that does not answer is given up: never after a caller's own limit."""
    until = time.monotonic() + ASK_S
    return until if limit is None else min(until, limit)


@contextmanager
def _telling(
    tell: Callable[[StatementEvent], object],
    of: tuple[str, str | None, NodeName, Sequence[ShardId]],
    repeated: bool,
) -> Iterator[None]:
    began = time.perf_counter()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        tell(StatementEvent(*of, (time.perf_counter() - began) * 1000, repeated, error))


def _import_late() -> None:
    """Import what is not needed until later: a fork waits for a thread that does so just now.

    A child would wait for ever, as its copy of the thread does not run.
    """
    if len(_open):
        for name in _LATE:
            import_module(name)


def _begin_in_child() -> None:
    """Make a forked child share no connection: two processes would get each other's answers."""
    for one in list(_open):
        one._begin_in_child()  # noqa: SLF001  # the same module


os.register_at_fork(before=_import_late, after_in_child=_begin_in_child)


def _load(source: str | os.PathLike[str]) -> Topology:
    from pathlib import Path  # noqa: PLC0415  # with a connection string, nothing of it is needed

    from shardctl.topology import loader  # noqa: PLC0415  # same

    return loader.load(Path(source))


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Of the pool of each node, which is opened when the node is first used; times in seconds."""

    min_size: int = 1
    max_size: int = 10
    timeout: float = 10.0
    """How long a statement waits for a connection."""
    max_idle: float = 600.0
    max_lifetime: float = 3600.0
    prepare_threshold: int | None = 5
    """After so many uses psycopg prepares a statement; behind poolers it never does."""
    configure: Callable[[Any], Any] | None = None
    """Called with each new connection, to register adapters for instance.

    A coroutine function for `AsyncShardedDatabase`, as psycopg_pool has it. Behind poolers,
    nothing that it sets in the server's session stays.
    """
    check: Callable[[Any], Any] | None = None
    """Called with a connection before each use; where it raises, another one is taken.

    The router looks without a round trip whether the other side has ended a connection, so few
    need this. A coroutine function for `AsyncShardedDatabase`.
    """
    row_factory: Any = None
    """psycopg's, for the connections of `shard()`; the router's own calls return tuples."""
    cursor_factory: Any = None
    """psycopg's, for the connections of `shard()`."""

    def options(self, *, pooled: bool) -> dict[str, Any]:
        """Give what psycopg's pool of a node takes; `pooled` if the node is behind a pooler."""
        same = ("min_size", "max_size", "timeout", "max_idle", "max_lifetime", "configure", "check")
        return {
            **{name: getattr(self, name) for name in same},
            # psycopg's pool waits twice as long after each attempt that fails, for up to five
            # minutes, and starts no other until then: calls would fail long after an outage. It
            # gives up after this many seconds instead, and `reconnect_failed` begins the next.
            "reconnect_timeout": 1.0,
            # Each statement is a transaction of its own, unless one is begun. Prepared ones stay
            # in a server's session, which a pooler gives to another client after each.
            "kwargs": {
                "autocommit": True,
                "prepare_threshold": None if pooled else self.prepare_threshold,
                "row_factory": self.row_factory,
                "cursor_factory": self.cursor_factory,
            },
        }


class StatementEvent(NamedTuple):
    """A statement on one node, or a transaction, that has ended: what `on_statement` is given."""

    call: str
    """The router's method: `select`, `scatter`, ...; `shard` for a whole transaction."""
    table: str | None
    """None for a transaction."""
    node: NodeName
    shards: Sequence[ShardId]
    took_ms: float
    """From the call, with the wait for a connection, to the whole answer."""
    repeated: bool
    """Whether the shard had moved, so that this is the second attempt."""
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How a node answered; `error` is None where it did."""

    error: str | None
    took_ms: float
    map_version: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What the router has done so far; `pools` are psycopg_pool's own numbers."""

    map_version: int | None
    """None until the first map has been read."""
    map_reads: int
    """Newer maps that were taken over."""
    repeated: int
    """Statements that met the fence and were done again."""
    pools: Mapping[NodeName, Mapping[str, int]]
