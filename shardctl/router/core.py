"""What both faces have in common: plans, and all that needs no server."""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from shardctl.router import fence, places, plans, refusals, statements
from shardctl.router.known import Known
from shardctl.router.plans import Source
from shardctl.router.requests import Execute, Together
from shardctl.router.settings import NodeHealth, PoolSettings, Stats
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.router.aggregates import Asking, Fields
    from shardctl.router.events import StatementEvent
    from shardctl.router.places import Through
    from shardctl.router.requests import Parameters, Plan
    from shardctl.router.rows import Factory
    from shardctl.router.scatter import Scatter
    from shardctl.router.statements import Term, Where
    from shardctl.topology.handles import NodeName, ShardId
    from shardctl.topology.keys import Key
    from shardctl.topology.model import Topology


_open: weakref.WeakSet[Routed] = weakref.WeakSet()
"""All open databases of this process."""


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
        on_statement: Callable[[StatementEvent], object] | None = None,
    ) -> None:
        """Take the map of a topology; raises TopologyMissing, TopologyInvalid, NoNodeAliases."""
        self._settings = pool or PoolSettings()
        self._known = Known(
            patience, on_statement=on_statement, row_factory=self._settings.row_factory
        )
        self._width = width
        self._source: Source | None = None
        self._closed = False
        self._set_up()
        _open.add(self)
        given = dict(connect or {})
        if isinstance(source, str) and ("=" in source or "://" in source):
            self._source = Source(places.first_of(source, given), dict(nodes or {}), given)
            return
        topology = _load(source) if isinstance(source, str | os.PathLike) else source
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

    def _begin_in_child(self) -> None:
        """Leave pools, locks and threads to the parent, and begin with none."""
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
        fields: Fields,
        table: str,
        where: Where | None,
        parameters: Parameters,
        order_by: Any,
        limit: int | None,
        deadline: float | None,
        partial: bool,
        factory: Factory | None,
    ) -> Asking:
        from shardctl.router import aggregates  # noqa: PLC0415  # with its first use
        from shardctl.router.scatter import Scatter  # noqa: PLC0415  # same

        text = statements.condition(where, parameters)
        text, named = statements.bound(text, parameters)
        until = None if deadline is None else time.monotonic() + deadline
        factory = factory or self._known.row_factory
        orders = statements.orders(order_by)

        def whole(
            terms: tuple[Term, ...], groups: tuple[Term, ...], factory: Factory | None = None
        ) -> Scatter:
            order = () if summed else orders
            most = None if summed else statements.number(limit)
            asked = statements.Gathering(table, terms, text, order, most, groups)
            return Scatter(self._known, asked, named, self._width, until, partial, factory=factory)

        summed = aggregates.has_any(fields)
        if summed:
            return aggregates.aggregating(fields, orders, limit, factory, whole)
        return whole(statements.terms(fields), (), factory)  # type: ignore[arg-type]  # there are none

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
            "configure": chosen.configure,
            "check": chosen.check,
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


def _begin_in_child() -> None:
    """Make a forked child share no connection: two processes would get each other's answers."""
    for one in list(_open):
        one._begin_in_child()  # noqa: SLF001  # the same module


os.register_at_fork(after_in_child=_begin_in_child)


def _load(source: str | os.PathLike[str]) -> Topology:
    from pathlib import Path  # noqa: PLC0415  # with a connection string, nothing of it is needed

    from shardctl.topology import brief  # noqa: PLC0415  # same

    return brief.load(Path(source))
