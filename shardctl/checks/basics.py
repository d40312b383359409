"""What every check needs to know of a node, asked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.postgres import catalog, queries
from shardctl.state import cluster, ledger
from shardctl.state.format import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from shardctl.postgres.catalog import Intruder, Schema
    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.ledger import Copy
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

QUERIES = queries.load("shardctl.checks", "basics.sql")


@dataclass(frozen=True, slots=True)
class Basics:
    """One node as it is: its server, its own row, its map, its schemas, its journal of moves.

    `state` is None where schema shardctl is missing; `schemas` are all that are no
    system's, so also other nodes' shards, strays and retired copies.
    """

    version_number: int
    version: str
    in_recovery: bool
    started: datetime
    state: ClusterRow | None
    map: Mapping[ShardId, NodeName]
    schemas: Mapping[str, Schema]
    shadows: tuple[tuple[str, str], ...]
    journal: tuple[Copy, ...]
    missing: tuple[str, ...] = ()
    """Tables of schema shardctl that were dropped; without its journal none is read."""
    intruders: tuple[Intruder, ...] = ()
    """By what a role could run its code in shardctl's sessions."""

    def live(self, topology: Topology, node: Node) -> dict[str, ShardId]:
        """Give the shards that the topology gives to the node and that live there."""
        return {
            schema: shard
            for shard in node.shards
            if (schema := topology.schema(shard)) in self.schemas
        }


def read(connection: Connection, topology: Topology, node: Node) -> Basics:
    """Ask one node; the number of questions does not depend on its shards."""
    number, version, in_recovery, started = queries.one(connection, QUERIES["server"])
    state = cluster.read(connection) if cluster.is_present(connection) else None
    # A newer journal may have other columns.
    missing = cluster.missing(connection, state)
    known = state if state is not None and state.format <= FORMAT and not missing else None
    return Basics(
        version_number=number,
        version=version,
        in_recovery=in_recovery,
        started=started,
        state=state,
        map=cluster.read_map(connection) if state else {},
        schemas=catalog.read_schemas(connection, topology.database.app_roles),
        shadows=catalog.read_shadows(connection, topology),
        journal=ledger.copies(connection, topology, node.name, known),
        missing=missing,
        intruders=catalog.read_intruders(connection),
    )
