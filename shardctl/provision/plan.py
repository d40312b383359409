"""What has to be done so that the fleet is what the topology has; pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardctl.errors import together
from shardctl.ids import generator
from shardctl.postgres.catalog import Schema
from shardctl.provision.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.provision.observe import Observed
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, PoolerName, ShardId, Topology

Action = Literal["create", "replace", "adopt", "grant", "run", "validate", "write", "reload"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a plan is carried out; `jobs` sessions a node at the most.

    A batch waits for locks of other sessions for `lock_timeout_ms`, `attempts` times in all.
    Between two attempts it waits longer each time, from 0.1 s to 2 s.
    """

    jobs: int = 4
    lock_timeout_ms: int = 2000
    attempts: int = 10


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a plan, of a node or of a pooler; shards or a name describe what it is about."""

    action: Action
    kind: str
    node: NodeName | None
    shards: tuple[ShardId, ...] = ()
    name: str | None = None
    pooler: PoolerName | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self) | {"shards": list(self.shards)}


@dataclass(frozen=True, slots=True)
class ShardWork:
    """What one shard on its node still needs."""

    shard: ShardId
    schema: str
    create: bool = False
    adopt: bool = False
    sequences: Literal["create", "replace"] | None = None
    wrapper: Literal["create", "replace"] | None = None
    grant_to: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    """Roles of `grant_to` that had nothing: they get what is in the schema already, too."""
    migrations: tuple[Migration, ...] = ()
    validate: tuple[str, ...] = ()
    """Tables whose CHECK of the key was added earlier and is not validated."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node needs, in the order of execution."""

    node: NodeName
    roles: tuple[str, ...] = ()
    database: bool = False
    schema: bool = False
    """Whether schema shardctl is missing."""
    functions: tuple[str, ...] = ()
    """Functions of schema shardctl to create or replace."""
    grant_to: tuple[str, ...] = ()
    """Roles that lack a grant on the database or schema shardctl."""
    shards: tuple[ShardWork, ...] = ()
    map_version: int | None = None
    """The version to write the map with; None: the map is right."""

    def changes(self) -> list[Change]:
        """List the plan's lines, in the order of execution; empty if there is nothing to do."""
        lines = [Change("create", "role", self.node, name=role) for role in self.roles]
        if self.database:
            lines.append(Change("create", "database", self.node))
        if self.schema:
            lines.append(Change("create", "state", self.node, name="shardctl"))
        verb: Action = "create" if self.schema else "replace"
        lines += [Change(verb, "function", self.node, name=f"shardctl.{f}") for f in self.functions]
        lines += [Change("grant", "state", self.node, name=role) for role in self.grant_to]
        lines += self._shard_changes()
        if self.map_version is not None:
            lines.append(Change("write", "map", self.node, name=f"version {self.map_version}"))
        return lines

    def _shard_changes(self) -> Iterable[Change]:
        def of(chosen: Iterable[ShardWork]) -> tuple[ShardId, ...]:
            return tuple(work.shard for work in chosen)

        kinds: list[tuple[Action, str, tuple[ShardId, ...]]] = [
            ("create", "schema", of(w for w in self.shards if w.create)),
            ("adopt", "schema", of(w for w in self.shards if w.adopt)),
            ("create", "sequence", of(w for w in self.shards if w.sequences == "create")),
            ("replace", "sequence", of(w for w in self.shards if w.sequences == "replace")),
            ("create", "next_id", of(w for w in self.shards if w.wrapper == "create")),
            ("replace", "next_id", of(w for w in self.shards if w.wrapper == "replace")),
        ]
        for action, kind, shards in kinds:
            if shards:
                yield Change(action, kind, self.node, shards)
        for role in sorted({role for work in self.shards for role in work.grant_to}):
            chosen = of(w for w in self.shards if role in w.grant_to)
            yield Change("grant", "shard", self.node, chosen, role)
        pending = {m.name: m for work in self.shards for m in work.migrations}
        for migration in sorted(pending.values(), key=lambda m: m.number):
            chosen = of(w for w in self.shards if migration in w.migrations)
            yield Change("run", "migration", self.node, chosen, migration.name)
        for table in sorted({table for work in self.shards for table in work.validate}):
            chosen = of(w for w in self.shards if table in w.validate)
            yield Change("validate", "check", self.node, chosen, table)

    def migrations_only(self, only: Collection[ShardId] | None) -> NodePlan:
        """Keep what `migrate` does, in these shards; None is in all."""
        work = tuple(
            ShardWork(w.shard, w.schema, migrations=w.migrations, validate=w.validate)
            for w in self.shards
            if (w.migrations or w.validate) and (only is None or w.shard in only)
        )
        return NodePlan(self.node, shards=work)


def plan(
    topology: Topology,
    observed: Sequence[Observed],
    migrations: Sequence[Migration],
    *,
    adopt: bool = False,
) -> list[NodePlan]:
    """Compare the nodes with the topology and describe what each needs, in the topology's order.

    `observed` holds every node that owns shards, and the other nodes that could be read.
    Raises an error of `refusals`, or Problems of several, if the fleet must not be changed.
    """
    problems = refusals(topology, observed, migrations, adopt=adopt)
    if problems:
        raise together(problems)
    version = map_version(observed)
    return [_node(topology, one, migrations, version) for one in observed]


def map_version(observed: Iterable[Observed]) -> int:
    """Give the version that every node's map should have: the newest that is known, at least 1."""
    return max((one.state.map_version for one in observed if one.state), default=0) or 1


def _node(
    topology: Topology, one: Observed, migrations: Sequence[Migration], version: int
) -> NodePlan:
    wanted = generator.bodies(
        generator.render(
            topology.id, topology.id.generator, topology.shard_count, topology.key_rule
        )
    )
    present = one.state is not None
    roles = topology.database.app_roles
    functions = generator.names(s for s, body in wanted.items() if one.functions.get(s) != body)
    whole_map = one.map == topology.owners()
    up_to_date = one.state is not None and whole_map and one.state.map_version >= version
    return NodePlan(
        node=one.node,
        roles=tuple(role for role in roles if role not in one.roles),
        database=not one.database,
        schema=not present,
        functions=tuple(functions),
        grant_to=tuple(
            role for role in roles if not present or role in one.ungranted or role not in one.roles
        ),
        shards=tuple(
            work
            for shard in topology.nodes[one.node].shards
            if (work := _shard(topology, one, shard, migrations)) is not None
        ),
        map_version=None if up_to_date else version,
    )


def _shard(
    topology: Topology, one: Observed, shard: ShardId, migrations: Sequence[Migration]
) -> ShardWork | None:
    schema, roles = topology.schema(shard), topology.database.app_roles
    there = one.schemas.get(schema) or Schema(
        counter=False, register=False, wrapper=None, ungranted=roles
    )
    right = generator.wrapper_body(schema, shard)
    # A role that does not exist yet has no grants; the catalog cannot be asked about it.
    missing = {role for role in roles if role not in one.roles}
    needs: dict[str, Any] = {
        "create": schema not in one.schemas,
        "adopt": schema in one.schemas and shard not in one.map,
        "sequences": "create"
        if not (there.counter and there.register)
        else ("replace" if there.unfit else None),
        "wrapper": None
        if there.wrapper == right
        else ("create" if there.wrapper is None else "replace"),
        "grant_to": tuple(role for role in roles if role in {*missing, *there.ungranted}),
        "migrations": tuple(m for m in migrations if one.lacking(m, [shard])),
        "validate": tuple(table for where, table in one.unvalidated if where == schema),
    }
    if not any(needs.values()):
        return None
    return ShardWork(shard, schema, strangers=(*missing, *there.strangers), **needs)
