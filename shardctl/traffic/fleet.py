"""The state of the nodes for the load: the newest map, live shards, and the load's table."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import Refused, ShardctlError, together
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect, unavailable
from shardctl.provision.maps import map_unwritten
from shardctl.state import cluster, lock, observer
from shardctl.traffic import client_routes
from shardctl.traffic.client_routes import QUERIES, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


_EVERY_S = 0.01
_AFTER_FAILURE_S = 0.05
_CONNECT_S = 2
"""The least connect_timeout of libpq."""


@dataclass(frozen=True, slots=True)
class Map:
    """A complete version of the map."""

    version: int
    owners: Mapping[ShardId, NodeName]


class Owners:
    """The newest map on any node.

    A thread for each node reads it every 10 ms while a client waits for a newer one, so that a node
    that hangs delays no client. It logs in as applications do: it sees no map where they are
    rejected.
    """

    def __init__(self, topology: Topology, first: Map) -> None:
        self._topology = topology
        self.newest = first
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._wanted_until = 0.0
        # Daemons: a thread whose node hangs must not block the end of the process.
        self._watchers = [
            threading.Thread(target=self._watch, args=(node,), daemon=True, name=f"map-{node.name}")
            for node in topology.nodes.values()
        ]

    def start(self) -> None:
        """Start the threads, which wait for `look`."""
        for watcher in self._watchers:
            watcher.start()

    def look(self) -> None:
        """Read the nodes' maps for a second."""
        self._wanted_until = time.monotonic() + 1.0
        self._wanted.set()

    def newer(self, than: int, *, seconds: float) -> bool:
        """Wait for a map above version `than`; return whether there is one."""
        self.look()
        with self._changed:
            return self._changed.wait_for(lambda: self.newest.version > than, timeout=seconds)

    def stop(self) -> None:
        """End the threads, except those whose node hangs."""
        self._stopped.set()
        self._wanted.set()
        for watcher in self._watchers:
            if watcher.ident is not None:
                watcher.join(_CONNECT_S)

    def _watch(self, node: Node) -> None:
        """Read one node's map, as long as a client waits for it."""
        options = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": _CONNECT_S * 1000}
        conninfo = client_routes.direct(self._topology, node, **options)
        while self._wanted.wait() and not self._stopped.is_set():
            try:
                with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as session:
                    while time.monotonic() < self._wanted_until and not self._stopped.is_set():
                        self._ask(session)
                        self._stopped.wait(_EVERY_S)
                    if not self._stopped.is_set():
                        self._wanted.clear()  # who waits for a map asks again, and again
            except psycopg.Error:  # unreachable: another node has the map
                self._stopped.wait(_AFTER_FAILURE_S)

    def _ask(self, session: psycopg.Connection[tuple[object, ...]]) -> None:
        row = cluster.read(session)  # before the map, which then is of this version or newer
        if row is None or row.map_version <= self.newest.version:
            return
        found = Map(row.map_version, cluster.read_map(session))
        with self._changed:
            if found.version > self.newest.version:
                self.newest = found
                self._changed.notify_all()


COMMAND = "sandbox traffic"
"""The name of the load in the audit trail, and for other operators."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a node; only `refusal` is set where it is unreachable."""

    refusal: str | None
    """Why it does not count: unreachable, a standby, or another node's clone."""
    error: ShardctlError | None = None
    map: Map | None = None
    live: frozenset[ShardId] = frozenset()
    """Shards whose live schema it has."""
    tables: Mapping[ShardId, str] = field(default_factory=dict)
    """Those of them with a table of the load's name, and the comment on it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes, and the newest map on any of them."""

    nodes: Mapping[NodeName, Seen]
    map: Map

    def unserved(self) -> frozenset[ShardId]:
        """Return the shards that are not live on their owner, or whose owner is unreachable."""
        return frozenset(
            shard for shard, node in self.map.owners.items() if shard not in self.nodes[node].live
        )

    def holding(self, node: NodeName) -> frozenset[ShardId]:
        """Return the shards that the map gives to a node."""
        return frozenset(shard for shard, owner in self.map.owners.items() if owner == node)


def observe(topology: Topology) -> dict[NodeName, Seen]:
    """Return the state of all nodes, including unreachable ones; raises SchemaTaken."""
    asked = observer.ask(topology, partial(_seen, topology), purpose=lock.purpose(COMMAND))
    found = dict(asked.values)
    for name, error in asked.errors.items():
        if not isinstance(error, NodeUnavailable):
            raise error
        found[name] = Seen(error.reason, error)
    return {name: found[name] for name in topology.nodes}


def look(topology: Topology) -> Fleet:
    """Return the state of the fleet.

    A node that owns no shards may be unreachable. Raises map_unwritten, owner_unknown, or what an
    owner's session raised.
    """
    nodes = observe(topology)
    maps = [seen.map for seen in nodes.values() if seen.map is not None]
    newest = max(maps, key=lambda one: one.version, default=None)
    if newest is None or newest.version == 0:
        problems = [seen.error for seen in nodes.values() if seen.error is not None]
        raise together(problems) if problems else map_unwritten()
    owning = set(newest.owners.values())
    if strange := owning - set(nodes):
        raise Refused(
            "owner_unknown",
            f"node {min(strange)} owns shards in the databases' map, but is not in the topology",
            hint="use the topology that belongs to these databases",
        )
    problems = [error for name in nodes if name in owning and (error := nodes[name].error)]
    if problems:
        raise together(problems)
    return Fleet(nodes, newest)


@contextmanager
def session(topology: Topology, node: Node, *, autocommit: bool = False) -> Iterator[Connection]:
    """Log in to a node as the owner of its schemas; raises NodeUnavailable, also if it is lost."""
    purpose = lock.purpose(COMMAND)
    try:
        with closing(
            connect(node, topology.database, purpose=purpose, autocommit=autocommit)
        ) as connection:
            yield connection
    except psycopg.Error as error:
        raise unavailable(node, error) from error


def _seen(topology: Topology, connection: Connection, node: Node) -> Seen:
    (standby,) = queries.one(connection, "SELECT pg_is_in_recovery()")
    state = cluster.read(connection) if cluster.is_present(connection) else None
    if standby:
        return Seen(refusal="a standby")
    if state is None:
        return Seen(refusal="schema shardctl is missing")
    if (state.cluster, state.node) != (topology.cluster, node.name):
        # A clone before its claim accepts no clients and has its source's shards.
        return Seen(refusal=f"the server there is node {state.node} of cluster {state.cluster}")
    shards = {topology.schema(shard): shard for shard in topology.owners()}
    found = connection.execute(QUERIES["schemas"], {"table": TABLE, "schemas": list(shards)})
    rows = found.fetchall()
    return Seen(
        refusal=None,
        # Read in this order, so that the map has this version or a newer one.
        map=Map(state.map_version, cluster.read_map(connection)),
        live=frozenset(shards[schema] for schema, _, _ in rows),
        tables={shards[schema]: comment for schema, table, comment in rows if table},
    )
