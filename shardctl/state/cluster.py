"""The `cluster` row and the map: what a node records of itself and of all shards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING

from psycopg.rows import class_row

from shardctl.errors import ShardctlError
from shardctl.ids.layout import Layout
from shardctl.postgres import queries
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import KeyRule, Topology

QUERIES = queries.load("shardctl.state", "queries.sql")


FORMAT = 1
"""Of schema `shardctl`: what this shardctl reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow(Layout):
    """A node's row in `shardctl.cluster`: what it is, and the layout of ids."""

    format: int
    cluster: str
    node: str
    identity: str
    shard_count: int
    schema_pattern: str
    generator: str
    map_version: int
    key_rule: KeyRule

    def differences(self, topology: Topology) -> list[tuple[str, str, str]]:
        """List what is fixed for the life of the cluster and differs: here, and in the topology.

        The generator is not fixed: `init` may change it.
        """
        pairs = {
            "shard count": (self.shard_count, topology.shard_count),
            "schema pattern": (self.schema_pattern, str(topology.schema_pattern)),
            "id layout": (Layout.of(self), Layout.of(topology.id)),
            "shards.key": (self.key_rule, topology.key_rule),
        }
        return [
            (what, str(here), str(wanted))
            for what, (here, wanted) in pairs.items()
            if here != wanted
        ]


class SchemaTaken(ShardctlError):
    """A schema that shardctl did not create has the name of shardctl's."""

    def __init__(self, database: str) -> None:
        super().__init__(
            f"database {database} has a schema `shardctl` that shardctl did not create",
            hint="rename or drop it: shardctl keeps its own tables under that name",
        )


def is_present(connection: Connection) -> bool:
    """Return whether schema shardctl is in this database; raises SchemaTaken."""
    ours, taken = queries.one(connection, QUERIES["present"])
    if taken and not ours:
        raise SchemaTaken(connection.info.dbname)
    return bool(ours)


def read(connection: Connection) -> ClusterRow | None:
    """Read the node's row; None when there is none. Schema shardctl must exist."""
    with connection.cursor(row_factory=class_row(ClusterRow)) as cursor:
        return cursor.execute(QUERIES["cluster"]).fetchone()


def make(connection: Connection, topology: Topology, node: NodeName) -> None:
    """Write the row of a new node, with an identity of its own and map version 0."""
    connection.execute(
        QUERIES["make_cluster"],
        {
            "format": FORMAT,
            "cluster": topology.cluster,
            "node": node,
            "shard_count": topology.shard_count,
            "schema_pattern": str(topology.schema_pattern),
            "key_rule": topology.key_rule,
            **asdict(topology.id),
        },
    )


def set_generator(connection: Connection, generator: str) -> None:
    """Write down which generator the functions hold now."""
    connection.execute(QUERIES["set_generator"], {"generator": generator})


def read_map(connection: Connection) -> dict[ShardId, NodeName]:
    """Read which node owns which shard, as far as this node knows."""
    return {ShardId(s): NodeName(n) for s, n in connection.execute(QUERIES["map"])}


def write_map(connection: Connection, topology: Topology, owners: dict[ShardId, NodeName]) -> None:
    """Write the owners of shards into the map; rows of other shards stay."""
    shards = sorted(owners)
    connection.execute(
        QUERIES["write_map"],
        {
            "shards": shards,
            "schemas": [topology.schema(s) for s in shards],
            "nodes": [owners[s] for s in shards],
        },
    )


def replace_map(
    connection: Connection, topology: Topology, owners: dict[ShardId, NodeName], version: int
) -> bool:
    """Write the whole map and its version in a transaction; return False if a newer one is there.

    Moves of other nodes write it without this node's lock, so a command may come late with its own.
    """
    if connection.execute(QUERIES["set_map_version"], {"version": version}).fetchone() is None:
        return False
    write_map(connection, topology, owners)
    return True


def ddl() -> str:
    """Give the statements that make schema `shardctl`."""
    return resources.files("shardctl.state").joinpath("schema.sql").read_text(encoding="utf-8")
