"""What has to be done so that the fleet is what the topology has; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shardctl.errors import together
from shardctl.ids import generator
from shardctl.provision.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.postgres.catalog import Schema
    from shardctl.provision.observe import Observed
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import NodeName, PoolerName, ShardId, Topology

Action = Literal["create", "replace", "adopt", "grant", "run", "validate", "write", "reload"]


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
    counter: bool = False
    register: bool = False
    wrapper: Literal["create", "replace"] | None = None
    unfit: bool = False
    """Whether sequences that are there have to be altered."""
    grant_to: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    """Roles of `grant_to` that had nothing: they get what is in the schema already, too."""
    migrations: tuple[Migration, ...] = ()
    validate: tuple[str, ...] = ()
    """Tables whose CHECK of the key was added earlier and is not validated."""

    @property
    def structure(self) -> bool:
        """Whether more than migrations is needed."""
        return bool(
            self.create or self.adopt or self.counter or self.register
            or self.wrapper or self.unfit or self.grant_to
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node needs, in the order of execution."""

    node: NodeName
    lock_slots: int
    roles: tuple[str, ...] = ()
    database: bool = False
    schema: bool = False
    """Whether schema shardctl is missing."""
    functions: tuple[str, ...] = ()
    """Functions of schema shardctl to create or replace."""
    new_functions: bool = False
    key_rule: str | None = None
    """The rule for keys that the node gets in place of another."""
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
        verb: Action = "create" if self.new_functions else "replace"
        lines += [Change(verb, "function", self.node, name=f"shardctl.{f}") for f in self.functions]
        if self.key_rule is not None:
            lines.append(Change("write", "keys", self.node, name=self.key_rule))
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
            ("create", "sequence", of(w for w in self.shards if w.counter or w.register)),
            ("replace", "sequence", of(w for w in self.shards if w.unfit)),
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
        return NodePlan(self.node, self.lock_slots, shards=work)

    def after_preparation(self) -> NodePlan:
        """Drop what is done before the node's lock can be taken: roles and the database."""
        return replace(self, roles=(), database=False)


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


def missing_migrations(
    observed: Sequence[Observed], migrations: Sequence[Migration]
) -> dict[str, list[NodeName]]:
    """Name files that ran somewhere and are not in the folder, each with its nodes."""
    known = {migration.name for migration in migrations}
    found: dict[str, list[NodeName]] = {}
    for one in observed:
        for file in sorted({file for file, _ in one.migrations} - known):
            found.setdefault(file, []).append(one.node)
    return found


def summary(changes: Iterable[Change]) -> dict[str, int]:
    """Count changes by action."""
    return dict(Counter(change.action for change in changes))


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
        lock_slots=one.lock_slots,
        roles=tuple(role for role in roles if role not in one.roles),
        database=not one.database,
        schema=not present,
        functions=tuple(functions),
        new_functions=not one.functions,
        key_rule=topology.key_rule if one.state and one.state.rekeyed(topology) else None,
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


_NOTHING_THERE = (False, False, None)


def _shard(
    topology: Topology, one: Observed, shard: ShardId, migrations: Sequence[Migration]
) -> ShardWork | None:
    schema = topology.schema(shard)
    there: Schema | None = one.schemas.get(schema)
    counter, register, wrapper = (
        (there.counter, there.register, there.wrapper) if there else _NOTHING_THERE
    )
    right = generator.wrapper_body(schema, shard)
    # A role that does not exist yet has no grants; the catalog cannot be asked about it.
    missing = {role for role in topology.database.app_roles if role not in one.roles}
    lacking = missing | set(there.ungranted if there else topology.database.app_roles)
    work = ShardWork(
        shard=shard,
        schema=schema,
        create=there is None,
        adopt=there is not None and shard not in one.map,
        counter=not counter,
        register=not register,
        wrapper=None if wrapper == right else "create" if wrapper is None else "replace",
        unfit=there is not None and there.unfit,
        grant_to=tuple(role for role in topology.database.app_roles if role in lacking),
        strangers=tuple(sorted(missing | set(there.strangers if there else ()))),
        migrations=tuple(
            m for m in migrations if shard not in one.migrations.get((m.name, m.checksum), ())
        ),
        validate=tuple(table for where, table in one.unvalidated if where == schema),
    )
    return work if work.structure or work.migrations or work.validate else None
