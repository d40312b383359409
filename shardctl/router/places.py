"""How the router reaches nodes: straight, or through poolers with an alias for each node.

And what it knows of the fleet: the newest map.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shardctl.libpq import FOR_POOLERS, LIVELINESS
from shardctl.router.errors import (
    AnotherCluster,
    MapUnread,
    MapWentBack,
    NodeUnknown,
    NoNodeAliases,
    NotOpen,
    reasons,
)
from shardctl.state.map import NodeMap
from shardctl.topology.model import NodeName, ShardId
from shardctl.topology.names import of_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.state.map import Map
    from shardctl.topology.model import Pooler, Topology

Through = Literal["poolers", "nodes"]

# Names and values go out as UTF-8, whatever a role or database has as its default.
_ALWAYS: dict[str, Any] = {
    **LIVELINESS,
    "client_encoding": "UTF8",
    "fallback_application_name": "shardctl.router",
}
# Keywords of libpq that speak to PostgreSQL: PgBouncer refuses them.
_NOT_FOR_POOLERS = frozenset({"client_encoding", "replication"})
_OWN = frozenset(["host", "hostaddr", "port", "password", "passfile", "service", "servicefile"])
"""Of the way to one server."""
_ASKING: dict[str, Any] = {"connect_timeout": 2, "tcp_user_timeout": 2000}


@dataclass(slots=True)
class Known:
    """The newest map that any node returned; threads may share it."""

    patience_s: float
    found: tuple[Map, Places] | None = None
    """None until the first answer, where there is no topology."""
    schemas: list[str] = field(default_factory=list)
    reads: int = 0
    """Maps that were newer than what was known."""
    repeated: int = 0
    """Statements that met the fence, and were done again."""
    refused: set[NodeName] = field(default_factory=set)
    """Nodes whose newer maps were not believed: their word ends no search."""
    asked_at: float = -math.inf
    """When nodes were last asked for the map, on `time.monotonic`."""
    in_tests: bool = False
    """Whether it is a test fleet, where a call must not miss what a test has not committed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def map(self) -> Map:
        """The newest map; raises NotOpen."""
        if self.found is None:
            raise NotOpen
        return self.found[0]

    @property
    def places(self) -> Places:
        """How nodes are reached; raises NotOpen."""
        if self.found is None:
            raise NotOpen
        return self.found[1]

    def begin(self, first: Map, places: Places) -> None:
        """Take the first map."""
        self.schemas = [first.pattern.schema(shard) for shard in range(len(first.owners))]
        self.found = first, places

    def adopt(self, newer: NodeMap) -> None:
        """Take a map if it is newer than what is known; one that goes backwards never counts."""
        with self._lock:
            if newer.map.version > self.map.version:
                self.found = newer.map, self.places
                self.reads += 1
        self.refused.discard(newer.node)

    def newer(
        self, answers: Sequence[NodeMap]
    ) -> Iterator[tuple[NodeMap, dict[NodeName, list[ShardId]] | None]]:
        """Give newer maps, the newest first, and who has to be asked about shards that it loses.

        None where nothing can confirm it. Where none loses shards, another node that has answered
        has to have it, if there is one: by a version alone, maps of later moves would seem old.
        """
        for one in sorted(answers, key=lambda answer: answer.map.version, reverse=True):
            if one.map.version <= self.map.version:
                return
            pairs = enumerate(zip(self.map.owners, one.map.owners, strict=True))
            losing = self.by_node(ShardId(n) for n, (here, there) in pairs if here != there)
            others = [other for other in answers if other.node != one.node]
            alone = bool(others) and all(o.map.version < one.map.version for o in others)
            if not losing and alone:
                yield one, None
                continue
            own = {other.node: other.map.owners for other in answers}
            for node in losing.keys() & own:
                if all(own[node][shard] != node for shard in losing[node]):
                    del losing[node]  # by its own map
            yield one, losing

    def require_no_older(self, outcomes: Sequence[Any]) -> None:
        """See that the map was read; raises MapUnread and MapWentBack."""
        versions = [one.map.version for one in outcomes if isinstance(one, NodeMap)]
        if not versions:
            raise MapUnread(reasons(outcomes))
        # A node that was away while shards moved between others has an older map.
        everyone = len(versions) == len(outcomes)
        if everyone and max(versions) < self.map.version:
            raise MapWentBack(self.map.version, max(versions))

    def renew_lock(self) -> None:
        """Forget the lock of a process that has forked: a thread that is not here may have it."""
        self._lock = threading.Lock()

    def require_same(self, reported: NodeMap) -> None:
        """Refuse the map of a node of another cluster; raises AnotherCluster."""
        if not self.map.same_cluster(reported.map):
            raise AnotherCluster(reported.node, reported.map.cluster, self.map.cluster)

    def count_repeated(self) -> None:
        """Note that a statement was done again."""
        with self._lock:
            self.repeated += 1

    def require(self, shard: int) -> ShardId:
        """Take a number for a shard's; raises ShardNotFound."""
        count = len(self.map.owners)
        if not 0 <= shard < count:
            # It brings along all that reads a topology, which only this error needs.
            from shardctl.topology.routes import ShardNotFound  # noqa: PLC0415

            raise ShardNotFound(shard, count)
        return ShardId(shard)

    def still(self, node: NodeName, shards: Iterable[ShardId]) -> list[ShardId]:
        """List those of these shards whose owner is `node`."""
        owners = self.map.owners
        return [shard for shard in shards if owners[shard] == node]

    def has_moved(self, node: NodeName, shards: Iterable[ShardId], reported: object) -> bool:
        """Return whether this is a newer map, with another owner of one of these of its shards."""
        return (
            isinstance(reported, NodeMap)
            and reported.map.version > self.map.version
            and reported.node not in self.refused
            and any(reported.map.owners[shard] != node for shard in shards)
        )

    def by_node(self, shards: Iterable[ShardId]) -> dict[NodeName, list[ShardId]]:
        """Group shards by their owners."""
        owners = self.map.owners
        found: dict[NodeName, list[ShardId]] = {}
        for shard in shards:
            found.setdefault(owners[shard], []).append(shard)
        return found

    def owning(self) -> list[NodeName]:
        """List the nodes that own shards."""
        return sorted(set(self.map.owners))

    def others(self) -> list[NodeName]:
        """List the nodes that own none, as far as they are known."""
        return sorted(set(self.places.nodes) - set(self.map.owners))


class Source(NamedTuple):
    """Where the first map comes from, where there is no topology."""

    keywords: Mapping[str, Any]
    nodes: Mapping[str, str]
    given: Mapping[str, Any]
    """The keywords for all nodes; they override the connection strings."""


@dataclass(frozen=True, slots=True)
class Places:
    """Connection strings of nodes; with a `database`, nodes are its aliases at poolers."""

    common: Mapping[str, Any]
    nodes: Mapping[NodeName, Mapping[str, Any]]
    """All known nodes, and libpq's keywords of each."""
    database: str | None
    behind: frozenset[NodeName] = frozenset()
    """Nodes whose keywords lead, or may lead, to a pooler."""

    def pooled(self, node: NodeName) -> bool:
        """Return whether the node may be behind a pooler that shares sessions among clients."""
        return self.database is not None or node in self.behind

    def conninfo(self, node: NodeName) -> str:
        """Write a node's connection string; raises NodeUnknown."""
        return make_conninfo("", **self._keywords(node))

    def asking(self, node: NodeName) -> str:
        """Write the connection string for a short question, which does not wait long."""
        return make_conninfo("", **{**self._keywords(node), **_ASKING})

    def _keywords(self, node: NodeName) -> dict[str, Any]:
        if self.database is not None:
            return {**self.common, "dbname": of_node(self.database, node)}
        if node not in self.nodes:
            raise NodeUnknown(node)
        return {**self.common, **self.nodes[node]}


def of_topology(topology: Topology, through: Through | None, given: Mapping[str, Any]) -> Places:
    """Take the places from a topology; by default through its poolers with aliases of nodes.

    `given` are libpq's keywords of the application's own. The role is the first of the
    applications' unless `given` names one. Raises NoNodeAliases.
    """
    database = topology.database
    role = database.app_roles[0] if database.app_roles else database.user
    common = {**_ALWAYS, **database.options, "user": role, **given}
    if through is None:
        through = "poolers" if topology.poolers else "nodes"
    if through == "nodes":
        nodes = {
            node.name: {"host": node.host, "port": node.port, "dbname": database.name}
            for node in topology.nodes.values()
        }
        return Places(common, nodes, None)
    poolers = [pooler for pooler in topology.poolers.values() if "node" in pooler.aliases]
    if not poolers:
        raise NoNodeAliases
    common = {key: value for key, value in common.items() if key not in _NOT_FOR_POOLERS}
    common |= {**FOR_POOLERS, **_at(poolers)}
    return Places(common, {name: {} for name in topology.nodes}, database.name)


def first_of(dsn: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read a connection string, of a node or of a pooler's alias, with all that is added."""
    return {**_ALWAYS, **conninfo_to_dict(dsn), **given}


def asked(keywords: Mapping[str, Any]) -> str:
    """Write the connection string for the first question."""
    return make_conninfo("", **{**keywords, **_ASKING})


def of_source(source: Source, reported: NodeMap) -> Places:
    """Take the places from what the first answer told."""
    if source.nodes:
        return of_listed(source, reported)
    # A database that has another name than was asked for is behind a pooler.
    if (source.keywords.get("dbname") or reported.database) != reported.database:
        return Places(source.keywords, {}, reported.database)
    return Places(source.keywords, {reported.node: {}}, None)


def of_listed(source: Source, reported: NodeMap) -> Places:
    """Take the places from a connection string for each node.

    The address in the first connection string is for its own server only. A node may be behind a
    pooler if its database has another name in its connection string than on the server, or if a
    service names it.
    """
    common = {key: value for key, value in source.keywords.items() if key not in _OWN}
    common |= {**source.given, "dbname": reported.database}
    with_service = {**_ALWAYS, **source.given}
    found: dict[NodeName, dict[str, Any]] = {}
    for name, dsn in source.nodes.items():
        own = conninfo_to_dict(dsn)
        found[NodeName(name)] = {**(with_service if "service" in own else common), **own}
    behind = [name for name, one in found.items() if one.get("dbname") != reported.database]
    return Places({}, found, None, frozenset(behind))


def _at(poolers: list[Pooler]) -> dict[str, Any]:
    """Name the poolers' addresses: libpq takes them in any order, and the next if one is away."""
    found: dict[str, Any] = {
        "host": ",".join(pooler.host for pooler in poolers),
        "port": ",".join(str(pooler.port) for pooler in poolers),
    }
    return found | ({"load_balance_hosts": "random"} if len(poolers) > 1 else {})
