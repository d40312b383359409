"""What a node is like today: a fixed number of questions, however many shards it has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.access import read_only
from shardctl.errors import together
from shardctl.postgres import OLDEST_MAJOR, catalog, queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster, identity, keys, ledger, lock
from shardctl.state.cluster import QUERIES as STATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.postgres.catalog import Intruder, Schema
    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.ledger import Copy
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class Said:
    """The map and the moves that a readable node has.

    `version` is None where the server has no map: a new one, or the `clone` of a move.
    """

    version: int | None
    map: Mapping[ShardId, NodeName]
    journal: Sequence[Copy]
    clone: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """One node's catalog, as far as `init` and `migrate` care; taken in one snapshot."""

    node: NodeName
    roles: frozenset[str]
    """Those of the required roles that exist."""
    database: bool
    state: ClusterRow | None = None
    map: Mapping[ShardId, NodeName] = field(default_factory=dict)
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    ungranted: tuple[str, ...] = ()
    migrations: Mapping[tuple[str, str], frozenset[ShardId]] = field(default_factory=dict)
    """(file, checksum) -> the shards it ran in."""
    shadows: tuple[tuple[str, str], ...] = ()
    """(schema, table) that would catch what is meant for a shard's table of that name."""
    read_only: frozenset[str] = frozenset()
    """Schemas of the node's shards that refuse writes, at least in part; also while they move."""
    unvalidated: Sequence[tuple[str, str]] = ()
    """(schema, table) whose CHECK of the key is not validated."""
    intruders: tuple[Intruder, ...] = ()
    """By what a role could run its code in our sessions."""
    journal: tuple[Copy, ...] = ()
    """The moves that the node knows."""

    def lacking(self, file: Migration, shards: Iterable[ShardId]) -> list[ShardId]:
        """Give those of some shards in which a file has not run."""
        ran = self.migrations.get((file.name, file.checksum), frozenset())
        return [shard for shard in shards if shard not in ran]

    def said(self) -> Said:
        """Give the map and the moves that it has."""
        version = self.state.map_version if self.state else None
        return Said(version, self.map, self.journal)


def observe(topology: Topology, node: Node, *, command: str) -> Observed:
    """Look at one node.

    Raises NodeUnavailable, node_unfit (a standby, too old, another cluster's or node's),
    format_too_new.
    """
    purpose = lock.purpose(command)
    try:
        with connect(node, topology.database, purpose=purpose, observing=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            return _observe_database(connection, topology, node)
    except NodeUnavailable as error:
        # Where no server answers, another database would only be waited for as long again.
        late = isinstance(error.__cause__, psycopg.errors.ConnectionTimeout)
        found = None if late else _without_database(topology, node, purpose)
        if found is None:
            raise
        return found
    except psycopg.Error as error:
        raise NodeUnavailable(node, error) from error


def look(
    topology: Topology,
    command: str,
    absent: Sequence[NodeUnavailable],
) -> tuple[list[Observed], list[str], list[NodeUnavailable]]:
    """Observe all nodes but the absent ones; give what is seen, notes, and who cannot be read.

    A node that owns no shards need not be there (that is a note). Raises what else is wrong.
    """
    away = {one.node for one in absent}
    seen = fanout.collect(
        [node for node in topology.nodes.values() if node.name not in away],
        lambda node: observe(topology, node, command=command),
    )
    notes: list[str] = []
    unread: list[NodeUnavailable] = list(absent)
    problems: list[ShardctlError] = []
    for node, error in seen.problems:
        if isinstance(error, NodeUnavailable) and not node.shards:
            notes.append(f"spare node {node.name} is down: {error.reason}")
        elif isinstance(error, NodeUnavailable):
            unread.append(error)
        else:
            problems.append(error)
    if problems:
        raise together([*unread, *problems])
    return [one for _, one in seen.values], notes, unread


def connect_for_maintenance(
    topology: Topology, node: Node, purpose: str, *, observing: bool = False
) -> Connection:
    """Log in while the cluster's own database is missing, in autocommit; raises NodeUnavailable."""
    return connect(
        node, topology.database, purpose=purpose, dbname="postgres", autocommit=True,
        observing=observing,
    )  # fmt: skip


def _without_database(topology: Topology, node: Node, purpose: str) -> Observed | None:
    """Look at a server that lacks the database; None where that is there, or nothing answers."""
    try:
        connection = connect_for_maintenance(topology, node, purpose, observing=True)
    except NodeUnavailable:
        return None
    with connection:
        found = _observe_server(connection, topology, node)
    return None if found.database else found


def _observe_server(connection: Connection, topology: Topology, node: Node) -> Observed:
    """Give the required roles that exist, and whether the database does; raises node_unfit."""
    database = topology.database
    given = {"roles": list(database.app_roles), "name": database.name}
    number, version, in_recovery, exists, roles = queries.one(connection, STATE["server"], given)
    check_version(node.name, number, version)
    if in_recovery:
        state = cluster.read(connection) if cluster.is_present(connection) else None
        move = identity.cloning(connection, node, state)
        raise identity.clone(node, move) if move else identity.standby(node)
    return Observed(node.name, frozenset(roles or ()), exists)


def check_version(node: str, number: int, version: str) -> None:
    """Refuse a server that is too old; `number` is its server_version_num."""
    if number // 10_000 < OLDEST_MAJOR:
        raise identity.node_unfit(
            node,
            f"PostgreSQL {version} is too old",
            hint=f"upgrade the server: shardctl needs PostgreSQL {OLDEST_MAJOR} or newer",
        )


def _observe_database(connection: Connection, topology: Topology, node: Node) -> Observed:
    roles = list(topology.database.app_roles)
    server = _observe_server(connection, topology, node)
    state = cluster.read(connection) if cluster.is_present(connection) else None
    if state is not None:
        if move := identity.cloning(connection, node, state):
            raise identity.clone(node, move)
        identity.check(state, topology, node.name)
    ran = connection.execute(STATE["migrations"]).fetchall() if state else []
    schemas = [topology.schema(shard) for shard in node.shards]
    return replace(
        server,
        state=state,
        map=cluster.read_map(connection) if state else {},
        schemas=catalog.read_schemas(connection, roles),
        functions=catalog.read_functions(connection),
        ungranted=catalog.read_ungranted(connection, roles) if state else (),
        migrations={(file, checksum): frozenset(shards) for file, checksum, shards in ran},
        shadows=catalog.read_shadows(connection, topology),
        read_only=frozenset(read_only.marks(connection, schemas)),
        unvalidated=catalog.read_unvalidated(connection, keys.CHECK, schemas),
        intruders=catalog.read_intruders(connection),
        journal=ledger.copies(connection, topology, node.name, state),
    )
