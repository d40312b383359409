"""What both faces have in common: plans, and all that needs no server."""

from __future__ import annotations

import os
import time
import weakref
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardctl.router import fence, places, plans, refusals, statements
from shardctl.router.known import Known
from shardctl.router.plans import Source
from shardctl.router.requests import Execute, Together
from shardctl.router.scatter import Scatter
from shardctl.router.settings import NodeHealth, PoolSettings, Stats
from shardctl.state import map as maps
from shardctl.topology.model import NodeName, ShardId, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.router.places import Through
    from shardctl.router.plans import Opened
    from shardctl.router.requests import Parameters, Plan
    from shardctl.router.statements import Names, Order, Where
    from shardctl.topology.keys import Key


_open: weakref.WeakSet[Routed] = weakref.WeakSet()
"""All open databases of this process."""
_LATE = ("shardctl.topology.loader", "shardctl.topology.routes")
"""What parts of the router import when they first need it."""


class Routed:
    """A sharded database as far as it is the same with threads and with asyncio."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Topology,
        *,
        through: Through | None = None,
        nodes: Mapping[str, str] | None = None,
        connect: Mapping[str, Any] | None = None,
        pool: PoolSettings | None = None,
        width: int = 8,
        patience: float = 5.0,
    ) -> None:
        """Take the map of a topology; raises TopologyMissing, TopologyInvalid, NoNodeAliases."""
        self._known = Known(patience)
        self._settings = pool or PoolSettings()
        self._width = width
        self._source: Source | None = None
        self._closed = False
        self._opened: dict[Any, list[Opened]] = {}
        self._set_up()
        _open.add(self)
        given = dict(connect or {})
        if isinstance(source, str) and ("=" in source or "://" in source):
            self._source = Source(places.first_of(source, given), dict(nodes or {}), given)
            return
        topology = source if isinstance(source, Topology) else _load(source)
        self._known.begin(maps.Map.of(topology), places.of_topology(topology, through, given))

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

        Raises key_unsupported, NotOpen.
        """
        return self._known.shard_of(key)

    def shard_of_id(self, number: int) -> ShardId:
        """Give the shard that made an id; raises IdOutOfRange, ShardNotFound, NotOpen."""
        return self._known.shard_of_id(number)

    def schema_of(self, shard: int) -> str:
        """Name the schema of a shard; raises ShardNotFound, NotOpen."""
        return self._known.schema(self._known.require(shard))

    def node_of(self, shard: int) -> NodeName:
        """Name the node that owns a shard, by the map that is known.

        Raises ShardNotFound, NotOpen.
        """
        return self._known.owner(self._known.require(shard))

    def _set_up(self) -> None:
        """Make what the face needs of its own: locks, and no pools yet."""
        raise NotImplementedError

    def _who(self) -> Any:
        """Identify the thread or task that calls."""
        raise NotImplementedError

    def _open_here(self) -> list[Opened]:
        """List the open transactions of the thread or task that calls."""
        return list(self._opened.get(self._who(), ()))

    @contextmanager
    def _noted(self, shard: ShardId, held: Any) -> Iterator[None]:
        """Know of a transaction of the thread or task that calls, until it ends."""
        who = self._who()
        self._opened.setdefault(who, []).append((shard, held))
        try:
            yield
        finally:
            mine = self._opened.get(who, [])  # none in a child of the process
            if (shard, held) in mine:
                mine.remove((shard, held))
            if not mine:
                self._opened.pop(who, None)

    def _begin_in_child(self) -> None:
        """Leave pools, locks and threads to the parent, and begin with none."""
        self._opened = {}
        self._known.renew_lock()
        self._set_up()

    def _begin(self) -> Plan[None]:
        return plans.begin(self._known, self._source)

    def _reread(self) -> Plan[int]:
        yield from self._begin()
        yield from fence.reread(self._known)
        return self._known.map.version

    def _stats(self, pools: Mapping[NodeName, Any]) -> Stats:
        found = self._known
        version = None if found.found is None else found.map.version
        counts = {node: pool.get_stats() for node, pool in dict(pools).items()}
        return Stats(version, found.reads, found.repeated, counts)

    def _checks(self, timeout: float) -> Plan[dict[NodeName, NodeHealth]]:
        """Check every node that owns shards."""
        yield from self._begin()
        owning = self._known.owning()
        until = time.monotonic() + timeout
        asking = [self._check_one(node, until) for node in owning]
        outcomes = yield Together(asking, self._width, until)
        return {
            node: NodeHealth(fence.reasons([outcome])[0], 0.0, None)
            if isinstance(outcome, BaseException)
            else outcome
            for node, outcome in zip(owning, outcomes, strict=True)
        }

    def _scatter(
        self,
        fields: Names,
        table: str,
        where: Where | None,
        parameters: Parameters,
        order_by: str | Order | Sequence[str | Order] | None,
        limit: int | None,
        deadline: float | None,
        partial: bool,
    ) -> Scatter:
        text = statements.condition(where, parameters)
        text, named = statements.bound(text, parameters)
        asked = statements.Gathering(
            table,
            statements.terms(fields),
            text,
            statements.orders(order_by),
            statements.number(limit),
        )
        until = None if deadline is None else time.monotonic() + deadline
        return Scatter(self._known, asked, named, self._width, until, partial, self._open_here())

    def _check_one(self, node: NodeName, until: float) -> Plan[NodeHealth]:
        """Ask a node for its map over a connection of its pool."""
        began = time.perf_counter()
        asking = Execute(node, maps.READ, (), until=until)
        answer = yield from refusals.execute(self._known, asking)
        took_ms = (time.perf_counter() - began) * 1000
        reported = maps.of_row(answer.rows[0]) if answer.rows else None
        if reported is None:
            return NodeHealth(
                "its map is incomplete: `shardctl init` has not finished", took_ms, None
            )
        self._known.require_same(reported)
        if reported.node != node:
            return NodeHealth(
                f"connected to node {reported.node} instead", took_ms, reported.map.version
            )
        return NodeHealth(None, took_ms, reported.map.version)

    def _pool_options(self, node: NodeName) -> dict[str, Any]:
        """Give what psycopg's pool of a node takes besides the connection string."""
        chosen = self._settings
        pooled = self._known.places.pooled(node)
        return {
            "min_size": chosen.min_size,
            "max_size": chosen.max_size,
            "timeout": chosen.timeout,
            "max_idle": chosen.max_idle,
            "max_lifetime": chosen.max_lifetime,
            # psycopg's pool waits twice as long after each attempt that fails, for up to five
            # minutes, and starts no other until then: calls would fail long after an outage. It
            # gives up after this many seconds instead, and `try_again` begins the next attempt.
            "reconnect_timeout": 1.0,
            # Each statement is a transaction of its own, unless one is begun. Prepared ones stay
            # in a server's session, which a pooler gives to another client after each.
            "kwargs": {
                "autocommit": True,
                "prepare_threshold": None if pooled else chosen.prepare_threshold,
            },
            "open": False,
        }


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
