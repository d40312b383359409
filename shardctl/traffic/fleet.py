"""The state of the nodes for the load: the newest map, live shards, and the load's table."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import Refused, ShardctlError, together
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.maps import map_unwritten
from shardctl.state import cluster, lock, observer
from shardctl.traffic.client_routes import QUERIES, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


COMMAND = "sandbox traffic"
"""The name of the load in the audit trail, and for other operators."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a node; only `refusal` is set where it is unreachable."""

    refusal: str | None
    """Why it does not count: unreachable, a standby, or another node's clone."""
    error: ShardctlError | None = None
    version: int = 0
    """Of its map; 0 is none."""
    owners: Mapping[ShardId, NodeName] = field(default_factory=dict)
    live: frozenset[ShardId] = frozenset()
    """Shards whose live schema it has."""
    tables: Mapping[ShardId, str] = field(default_factory=dict)
    """Those of them with a table of the load's name, and the comment on it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes, and the owners by the newest map on any of them."""

    nodes: Mapping[NodeName, Seen]
    owners: Mapping[ShardId, NodeName]

    def unserved(self) -> frozenset[ShardId]:
        """Return the shards that are not live on their owner, or whose owner is unreachable."""
        return frozenset(
            shard for shard, node in self.owners.items() if shard not in self.nodes[node].live
        )

    def holding(self, node: NodeName) -> frozenset[ShardId]:
        """Return the shards that the map gives to a node."""
        return frozenset(shard for shard, owner in self.owners.items() if owner == node)


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
    newest = max(nodes.values(), key=lambda seen: seen.version)
    if newest.version == 0:
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
    return Fleet(nodes, newest.owners)


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
        raise NodeUnavailable(node, error) from error


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
        version=state.map_version,
        owners=cluster.read_map(connection),
        live=frozenset(shards[schema] for schema, _, _ in rows),
        tables={shards[schema]: comment for schema, table, comment in rows if table},
    )
