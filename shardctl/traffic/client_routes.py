"""How a client reaches a shard: the server, the database name, and the statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from psycopg import sql
from psycopg.conninfo import make_conninfo

from shardctl import libpq
from shardctl.errors import Misused
from shardctl.pgbouncer import console
from shardctl.postgres import queries
from shardctl.topology import names

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology

QUERIES = queries.load("shardctl.traffic", "traffic.sql")
TABLE = "shardctl_traffic"
"""The load's own table, one in every shard."""
PURPOSE = "shardctl sandbox traffic"

Aliases = Literal["shard", "node", "direct", "router"]
"""`shard`: aliases of shards, which need no map. `node`: aliases of nodes, with schema names.
`direct`: the same without a pooler. `router`: by `shardctl.router`."""


class Statements(NamedTuple):
    """The statements in one shard, for libpq."""

    insert: bytes
    update: bytes
    select: bytes


@dataclass(frozen=True, slots=True)
class ClientRoute:
    """A kind of aliases, and the poolers of the clients; none if clients connect to the nodes."""

    topology: Topology
    kind: Aliases
    poolers: tuple[Pooler, ...]

    @classmethod
    def of(cls, topology: Topology, kind: Aliases) -> ClientRoute:
        """Return the kind with the poolers that offer such aliases; raises no_such_aliases."""
        if kind in {"direct", "router"}:
            return cls(topology, kind, ())
        poolers = tuple(p for p in topology.poolers.values() if kind in p.aliases)
        if not poolers:
            raise Misused(
                "no_such_aliases",
                f"no pooler in the topology offers aliases of {kind}s",
                hint="use another kind, for example --aliases direct, which needs no pooler",
            )
        return cls(topology, kind, poolers)

    @property
    def by_map(self) -> bool:
        """Whether clients need the map."""
        return self.kind not in {"shard", "router"}

    def conninfo(self, client: int, to: ShardId | NodeName) -> str:
        """Return the connection string of a client's session with a shard or a node."""
        if self.kind == "direct":
            node = self.topology.nodes[to]  # type: ignore[index]  # a node
            more = {"dbname": self.topology.database.name, "application_name": PURPOSE}
            user, options = role(self.topology), self.topology.database.options
            return libpq.conninfo(node, options, user=user, **more)
        pooler = self.poolers[client % len(self.poolers)]
        if self.kind == "shard":
            alias = self.topology.schema(to)  # type: ignore[arg-type]  # a shard
        else:
            alias = names.of_node(self.topology.database.name, to)  # type: ignore[arg-type]  # same
        login = console.conninfo(pooler, self.topology.database, purpose=PURPOSE)
        return make_conninfo(login, user=role(self.topology), dbname=alias)

    def statements(self, shard: ShardId) -> Statements:
        """Compose the statements of a shard; its own alias and the router need no schema name."""
        named = (self.topology.schema(shard), TABLE) if self.by_map else (TABLE,)
        table = sql.Identifier(*named)
        return Statements(
            *(
                QUERIES[name].format(table=table).as_bytes(None)
                for name in ("insert", "update", "select")
            )
        )


def role(topology: Topology) -> str:
    """Return the role of the load: the first application role."""
    roles = topology.database.app_roles
    return roles[0] if roles else topology.database.user
