"""What has to be done so that the fleet is what the topology says; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shardctl.errors import Problems, ShardctlError
from shardctl.ids import generator
from shardctl.topology import names, ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.provision.migrations import Migration
    from shardctl.provision.observe import Observed, Schema
    from shardctl.topology.model import Topology

Action = Literal["create", "replace", "adopt", "grant", "run", "write", "upgrade"]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a plan; shards or a name say what it is about."""

    action: Action
    kind: str
    node: NodeName
    shards: tuple[ShardId, ...] = ()
    name: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "action": self.action,
            "kind": self.kind,
            "node": self.node,
            "shards": list(self.shards),
            "name": self.name,
        }


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
    grant_to: tuple[str, ...] = ()
    migrations: tuple[Migration, ...] = ()

    @property
    def structure(self) -> bool:
        """Whether more than migrations is needed."""
        return bool(
            self.create or self.adopt or self.counter or self.register
            or self.wrapper or self.grant_to
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node needs, in the order of execution."""

    node: NodeName
    lock_slots: int
    roles: tuple[str, ...] = ()
    database: bool = False
    from_format: int | None = None
    """The format to upgrade from, 0 where schema shardctl is not there; None: it is right."""
    functions: tuple[str, ...] = ()
    """Functions of schema shardctl to create or replace."""
    new_functions: bool = False
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
        if self.from_format is not None:
            action: Action = "upgrade" if self.from_format else "create"
            lines.append(Change(action, "state", self.node, name="shardctl"))
        verb: Action = "create" if self.new_functions else "replace"
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
            ("create", "sequence", of(w for w in self.shards if w.counter or w.register)),
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

    def migrations_only(self) -> NodePlan:
        """Keep what `migrate` does."""
        work = tuple(
            ShardWork(w.shard, w.schema, migrations=w.migrations)
            for w in self.shards
            if w.migrations
        )
        return NodePlan(self.node, self.lock_slots, shards=work)

    def after_preparation(self) -> NodePlan:
        """Drop what is done before the node's lock can be taken: roles and the database."""
        return replace(self, roles=(), database=False)


class OwnershipDiffers(ShardctlError):
    """The map in the databases gives shards to other nodes than the topology does."""

    def __init__(self, witness: NodeName, node: str, wanted: str, shards: Sequence[int]) -> None:
        super().__init__(
            f"shards {ranges.of(shards)}: the map on node {witness} gives them to {node}, "
            f"the topology to {wanted}",
            hint="the databases say who owns a shard: take the newest topology file; "
            "to give shards a new node, use `shardctl move-shards`",
        )
        self.shards = tuple(shards)


class SchemaInTheWay(ShardctlError):
    """A schema stands where a shard would be made."""

    def __init__(self, node: NodeName, what: str, schemas: Sequence[str], *, hint: str) -> None:
        shown = ", ".join(schemas[:5]) + (", ..." if len(schemas) > 5 else "")
        super().__init__(f"node {node}: {what}: {shown} ({len(schemas)})", hint=hint)
        self.schemas = tuple(schemas)


class ShardLost(ShardctlError):
    """A shard that was made and is no longer there; it is not made anew, empty, in silence."""

    def __init__(self, node: NodeName, shards: Sequence[int]) -> None:
        super().__init__(
            f"node {node}: the schemas of shards {ranges.of(shards)} were made and are gone",
            hint="restore them from a backup; or, to begin with empty ones, delete the shards' "
            "rows from shardctl.map and shardctl.migration on that node and run init again",
        )
        self.shards = tuple(shards)


class MigrationChanged(ShardctlError):
    """A migration file is not what ran under its name."""

    def __init__(self, node: NodeName, migration: Migration, ran: str, shards: list[int]) -> None:
        super().__init__(
            f"{migration.file}: changed after it ran in shards {ranges.of(shards)} of node {node} "
            f"(SHA-256 {migration.checksum[:12]}, ran as {ran[:12]})",
            hint="put the file back as it was, and write what is new into a new migration",
        )


class TableShadowed(ShardctlError):
    """A table behind the shards' on the search_path has the name of a shard's table."""

    def __init__(self, node: str, schema: str, table: str) -> None:
        super().__init__(
            f"node {node}: table {schema}.{table} has the name of a table in the shards",
            hint="rename or drop it, or take its schema off the search_path: "
            "statements meant for a shard would reach it once that shard has moved",
        )


def plan(
    topology: Topology,
    observed: Sequence[Observed],
    migrations: Sequence[Migration],
    *,
    adopt: bool = False,
) -> list[NodePlan]:
    """Compare the nodes with the topology and say what each needs, in the topology's order.

    `observed` holds every node that owns shards, and those others that could be read.
    Raises an error of this module, or Problems of several, if the fleet must not be changed.
    """
    stale = _ownership(topology, observed)
    problems: list[ShardctlError] = [*stale, *_shadowed(observed)]
    disputed = {shard for error in stale for shard in error.shards}
    plans = []
    version = max((o.state.map_version for o in observed if o.state), default=0) or 1
    for one in observed:
        owned = topology.nodes[one.node].shards
        if not owned and one.state is None:
            continue  # it waits to be cloned onto
        problems += _in_the_way(topology, one, observed, disputed, adopt=adopt)
        problems += _changed(one, migrations)
        plans.append(_node(topology, one, migrations, version))
    if problems:
        raise problems[0] if len(problems) == 1 else Problems(problems)
    return plans


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
    wanted = generator.bodies(generator.render(topology.id, topology.id.generator))
    present = one.state is not None
    roles = topology.database.app_roles
    functions = tuple(name for name, body in wanted.items() if one.functions.get(name) != body)
    whole_map = one.map == topology.owners()
    up_to_date = one.state is not None and whole_map and one.state.map_version >= version
    return NodePlan(
        node=one.node,
        lock_slots=one.lock_slots,
        roles=tuple(role for role in roles if role not in one.roles),
        database=not one.database,
        from_format=None if present else 0,
        functions=functions,
        new_functions=not one.functions,
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
        grant_to=tuple(role for role in topology.database.app_roles if role in lacking),
        migrations=tuple(
            m for m in migrations if shard not in one.migrations.get((m.name, m.checksum), ())
        ),
    )
    return work if work.structure or work.migrations else None


def _ownership(topology: Topology, observed: Sequence[Observed]) -> list[OwnershipDiffers]:
    """Compare every map with the topology: a stale file must not bring a shard to life."""
    differing: dict[tuple[NodeName, str, str], list[int]] = {}
    owners = topology.owners()
    for one in observed:
        for shard, node in one.map.items():
            wanted = owners.get(shard, NodeName("no node"))
            if node != wanted:
                differing.setdefault((one.node, node, wanted), []).append(shard)
    told: set[tuple[str, str, tuple[int, ...]]] = set()
    errors: list[OwnershipDiffers] = []
    for (witness, owner, right), shards in differing.items():
        if (owner, right, tuple(shards)) not in told:
            told.add((owner, right, tuple(shards)))
            errors.append(OwnershipDiffers(witness, owner, right, shards))
    return errors


def _in_the_way(
    topology: Topology,
    one: Observed,
    observed: Sequence[Observed],
    disputed: set[int],
    *,
    adopt: bool,
) -> list[ShardctlError]:
    """Find schemas that forbid making this node's shards: foreign, retired, or live elsewhere.

    Disputed shards have their error already.
    """
    owned = {topology.schema(s): s for s in topology.nodes[one.node].shards if s not in disputed}
    foreign = [n for n, s in owned.items() if n in one.schemas and s not in one.map]
    missing = {name for name in owned if name not in one.schemas}
    # A retired name may have lost the end of its schema's name: look through the few of them.
    retired = {
        name: schema
        for name in one.schemas
        for schema in (missing if "__retired_" in name else ())
        if names.retired_of(schema, name)
    }
    errors: list[ShardctlError] = []
    # A shard's own map row is written by the transaction that makes its schema.
    gone = missing - set(retired.values())
    lost = sorted(owned[name] for name in gone if one.map.get(owned[name]) == one.node)
    if lost:
        errors.append(ShardLost(one.node, lost))
    if foreign and not adopt:
        errors.append(
            SchemaInTheWay(
                one.node,
                "schemas that shardctl did not make stand where shards belong",
                foreign,
                hint="drop or rename them, or give --adopt to take them over with what is in them",
            )
        )
    if retired:
        errors.append(
            SchemaInTheWay(
                one.node,
                "retired copies stand where the topology wants shards made anew",
                sorted(retired),
                hint="these shards have moved away: take the newest topology file",
            )
        )
    for other in observed:
        twice = sorted(name for name in missing if name in other.schemas)
        if other.node != one.node and twice:
            errors.append(
                SchemaInTheWay(
                    other.node,
                    f"shards that the topology gives to {one.node} live here",
                    twice,
                    hint="check the topology, or drop these schemas if nothing uses them",
                )
            )
    return errors


def _changed(one: Observed, migrations: Sequence[Migration]) -> list[ShardctlError]:
    by_name = {migration.name: migration for migration in migrations}
    return [
        MigrationChanged(one.node, by_name[file], checksum, sorted(shards))
        for (file, checksum), shards in one.migrations.items()
        if file in by_name and by_name[file].checksum != checksum
    ]


def _shadowed(observed: Sequence[Observed]) -> list[ShardctlError]:
    return [
        TableShadowed(one.node, schema, table) for one in observed for schema, table in one.shadows
    ]
