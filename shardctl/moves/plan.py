"""The plan of a move, made before it begins, and why a move must not begin; pure."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardctl.errors import Refused, ShardctlError, UsageError
from shardctl.postgres.logical.publication import Identity
from shardctl.state import journal
from shardctl.topology import names, ranges, routes
from shardctl.topology.model import Node, NodeName, Pooler, ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology

CLONE = "clone"
"""The default method of a move to a node without a server."""
STREAM = journal.STREAM

COLUMNS = ("id", "source", "target", "shards", "schemas", "retired", "method")
"""Fields of a plan for which the journal has columns of their own."""
_INDIFFERENT = ("shards", "migrations", "keys", "control", "relative", "subscription_options")
"""Fields that a move does not depend on, changes itself, or that may be corrected during it."""

_ADDRESS = ("host", "port", "pooler_host", "ssh", "data_directory", "bin_directory", "os_user")
"""Fields that say where a node is: a failover changes them, and the node stays what it is."""

COPY_INSTEAD = "move the shards with `shardctl move-shards` instead, which copies them"
"""The hint where a move cannot be reversed."""


class MoveRefused(ShardctlError):
    """A move that the topology rules out."""


class TopologyChanged(ShardctlError):
    """A topology that has changed since the move began."""

    def __init__(self, move: str, what: str, was: str, now: str) -> None:
        super().__init__(
            f"move {move}: {what} changed in the topology: expected {was}, found {now}",
            hint=f"set {what} back to {was} in the topology, then run the command again",
        )


class PlanUnreadable(ShardctlError):
    """A plan in the journal from another version of shardctl."""

    def __init__(self, move: str, why: str) -> None:
        super().__init__(
            f"move {move}: this version of shardctl cannot read its plan: {why}",
            hint="continue with the version of shardctl that started the move",
        )


class PreflightRefused(ShardctlError):
    """A refusal of preflight; `code` names the reason for programs."""

    def __init__(self, where: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.code = code


class NodeUnfit(PreflightRefused):
    """A source or a target that cannot take part in a move in its present state."""

    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)


class SourceUnfit(NodeUnfit):
    """A source from which shards cannot be moved in its present state."""


class TargetUnfit(NodeUnfit):
    """A target onto which nothing can be cloned in its present state."""


class PoolerUnfit(PreflightRefused):
    """A pooler whose clients would get errors in a cutover."""

    def __init__(self, pooler: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}", code, what, hint=hint)


@contextmanager
def collected(problems: list[ShardctlError]) -> Iterator[None]:
    """Collect a refusal instead of raising it, so that all are reported at once."""
    try:
        yield
    except ShardctlError as error:
        problems.extend(error.parts())


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a move; times in seconds, the rate in bytes a second."""

    max_pause_s: float
    retain_s: float
    max_rate: int | None = None
    terminate: bool = False
    duplicate_shared: bool = False
    ignore_standby: bool = False
    clone_with: str | None = None
    rehearse_only: bool = False
    """Whether the move ends after its rehearsal, with everything as it was."""
    max_wal_bytes: int | None = None
    """The most WAL that the source keeps for the move; None until that is decided."""
    keep_reverse_s: float = 0.0
    """For how long the move can be reversed when it is done; 0: not at all."""
    finish_reverse: bool = False
    """Whether the move may end the possibility to reverse an earlier one."""
    identity_full: bool = False
    """Whether tables without a replica identity get REPLICA IDENTITY FULL for the move."""


@dataclass(frozen=True, slots=True)
class Reversed:
    """The move that a reverse gives back, and from where the target's own changes begin there."""

    move: str
    lsn: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moved shards and their schemas, source, target, options, and the topology's fields."""

    id: str
    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    schemas: tuple[str, ...]
    retired: tuple[str, ...]
    map_version: int
    """The version of the map before the move; the claim writes the next one."""
    said: dict[str, str]
    """The topology's fields that the move depends on, by their place in the file."""
    options: Options
    method: str = CLONE
    reverse: str | None = None
    """The id of the move that can reverse this one; None where none is to."""
    reverses: Reversed | None = None
    """What this move reverses, if it is a reverse."""
    lent: tuple[Identity, ...] = ()
    """Tables that have REPLICA IDENTITY FULL for the move alone, once it has begun."""
    systems: Mapping[str, str] = field(default_factory=dict)
    """The system identifiers of the nodes that have to run when the move begins."""
    group: Mapping[str, Any] | None = None
    """The rebalance that the move is a part of, with all of its moves."""

    @property
    def streams(self) -> bool:
        """Whether the moved shards follow by logical replication until the cutover."""
        return self.method == STREAM

    @property
    def locked(self) -> tuple[NodeName, ...]:
        """The nodes that run before the move and whose locks it takes when it begins."""
        # A clone is a standby until its source has decided.
        return (self.source, self.target) if self.streams else (self.source,)

    @property
    def slot(self) -> str:
        """The replication slot of this move."""
        return journal.slot(self.id)

    def as_json(self) -> dict[str, Any]:
        """Return what the journal keeps in `plan`, besides its own columns."""
        return {name: kept for name, kept in asdict(self).items() if name not in COLUMNS}

    @classmethod
    def of_journal(cls, move: Move) -> MovePlan:
        """Read a plan back from the journal; raises PlanUnreadable."""
        columns: dict[str, Any] = {name: getattr(move, name) for name in COLUMNS}
        try:
            options = Options(**move.plan["options"])
            reverses = move.plan["reverses"] and Reversed(**move.plan["reverses"])
            given = {"options": options, "reverses": reverses, "lent": lent(move)}
            return cls(**(columns | move.plan | given))
        except (KeyError, TypeError) as error:
            raise PlanUnreadable(move.id, f"{type(error).__name__}: {error}") from error


def make(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    map_version: int,
    options: Options,
    *,
    move: str | None = None,
) -> MovePlan:
    """Plan a move of some shards of one node; raises UsageError and MoveRefused.

    `move` is its id, where that is known.
    """
    to = routes.node(topology, target).name
    chosen = tuple(sorted({ShardId(shard) for shard in shards}))
    if not chosen:
        raise UsageError("no shards given", hint="give shards, for example 2-3,17")
    owners = topology.owners()
    for shard in chosen:
        if shard not in owners:
            raise routes.ShardNotFound(shard, topology.shard_count)
    sources = {owners[shard] for shard in chosen}
    if to in sources:
        there = ranges.of(s for s in chosen if owners[s] == to)
        raise MoveRefused(f"shards {there} are already on node {to}", hint="leave them out")
    if len(sources) > 1:
        raise MoveRefused(
            f"the shards are on several nodes: {', '.join(sorted(sources))}",
            hint="move the shards of one node at a time: a move has one source",
        )
    (source,) = sources
    move = move or new_id()
    schemas = tuple(topology.schema(shard) for shard in chosen)
    return MovePlan(
        id=move,
        source=source,
        target=to,
        shards=chosen,
        schemas=schemas,
        retired=tuple(names.retired(schema, move) for schema in schemas),
        map_version=map_version,
        said=depends_on(topology, source, to),
        options=options,
    )


def lent(move: Move) -> tuple[Identity, ...]:
    """Read from the journal which tables have REPLICA IDENTITY FULL for a move alone."""
    return tuple(Identity(*one) for one in move.plan.get("lent", ()))


def new_id() -> str:
    """Give a new move's id; numbers of a sequence would be cloned with a node."""
    return secrets.token_hex(4)


def after(topology: Topology, plan: MovePlan) -> Topology:
    """Return the topology when the move is done."""
    return placed(topology, dict.fromkeys(plan.shards, plan.target))


def before(topology: Topology, plan: MovePlan) -> Topology:
    """Return the topology before the move, whether the file is already changed or not."""
    return placed(topology, dict.fromkeys(plan.shards, plan.source))


def placed(topology: Topology, owners: Mapping[ShardId, NodeName]) -> Topology:
    """Return a topology in which shards have these owners; others keep theirs.

    Raises nodes_unlisted.
    """
    if unlisted := sorted({*owners.values()} - {*topology.nodes}):
        of = [shard for shard, owner in owners.items() if owner in unlisted]
        raise Refused(
            "nodes_unlisted",
            f"the map gives shards {ranges.of(of)} to {', '.join(unlisted)}, and {topology.path} "
            "has no such node",
            hint="add each node with `shards: none` to the file, then run this command again",
        )
    now = {**topology.owners(), **owners}
    nodes = {
        name: replace(node, shards=tuple(sorted(s for s, owner in now.items() if owner == name)))
        for name, node in topology.nodes.items()
    }
    return replace(topology, nodes=nodes)


def apart(one: MovePlan | Move, other: MovePlan | Move) -> bool:
    """Return whether two moves have no node in common, so that both may run."""
    return {one.source, one.target}.isdisjoint({other.source, other.target})


def leaving(topology: Topology, plan: MovePlan) -> tuple[str, ...]:
    """Return the live schemas that the clone has and does not own: those of shards that stay.

    `topology` is the one before the move.
    """
    moved = set(plan.shards)
    return tuple(topology.schema(s) for s in topology.nodes[plan.source].shards if s not in moved)


def paused(topology: Topology, plan: MovePlan, pooler: Pooler) -> tuple[str, ...]:
    """Return a pooler's aliases of the moved shards, and of their node."""
    found: list[str] = []
    if "node" in pooler.aliases:
        found.append(names.of_node(topology.database.name, plan.source))
    if "shard" in pooler.aliases:
        found += plan.schemas
    return tuple(found)


def offered(topology: Topology, pooler: Pooler) -> int:
    """Count the aliases that a pooler offers."""
    nodes = len(topology.nodes) if "node" in pooler.aliases else 0
    return nodes + (topology.shard_count if "shard" in pooler.aliases else 0)


def depends_on(topology: Topology, source: NodeName, target: NodeName) -> dict[str, str]:
    """Return the topology's fields that a move depends on, by their place in the file.

    The owners of shards are left out: the move itself changes them.
    """
    parts: dict[str, Any] = {
        f"nodes.{name}": topology.nodes[name] for name in (source, target) if name in topology.nodes
    }
    parts |= {f"poolers.{name}": pooler for name, pooler in topology.poolers.items()}
    parts |= {"database": topology.database, "id": topology.id}
    said = {
        f"{place}.{name}": str(sorted(value.items()) if isinstance(value, dict) else value)
        for place, part in parts.items()
        for name, value in asdict(part).items()
        if name not in _INDIFFERENT
    }
    # Another operator may log in as another user, with a key at another path.
    said |= {
        f"{place}.ssh": str(part.ssh and part.ssh.host)
        for place, part in parts.items()
        if isinstance(part, Node | Pooler)
    }
    said |= {"cluster": topology.cluster, "shards.count": str(topology.shard_count)}
    return said | {"shards.schema": str(topology.schema_pattern)}


def elsewhere(topology: Topology, plan: MovePlan) -> list[NodeName]:
    """List the nodes of a move that the topology now has at another place than its plan."""
    now = depends_on(topology, plan.source, plan.target)
    changed = {place for place, was in plan.said.items() if now.get(place, was) != was}
    return [
        name
        for name in (plan.source, plan.target)
        if any(f"nodes.{name}.{one}" in changed for one in _ADDRESS)
    ]


def require_same(topology: Topology, plan: MovePlan, *, proved: Collection[NodeName] = ()) -> None:
    """Refuse to continue with a topology that has changed; raises TopologyChanged.

    Poolers may have been removed, and nodes that are `proved` to be the same may be elsewhere.
    """
    now = depends_on(topology, plan.source, plan.target)
    addresses = {f"nodes.{name}.{one}" for name in proved for one in _ADDRESS}
    for node in (plan.source, plan.target):
        if node not in topology.nodes:
            raise TopologyChanged(plan.id, "nodes", f"node {node}", "no such node")
    for place in sorted({*plan.said, *now} - addresses):
        section, _, rest = place.partition(".")
        if section == "poolers" and rest.partition(".")[0] not in topology.poolers:
            continue
        was, is_now = (one.get(place, "nothing") for one in (plan.said, now))
        if was != is_now:
            raise TopologyChanged(plan.id, place, was, is_now)


def half(sizes: Mapping[ShardId, int]) -> list[ShardId]:
    """Choose the upper part of each range of shards, such that both halves weigh about the same.

    So neither half has more ranges than there were. The halves differ by no more than one shard
    weighs, in bytes and, where shards are empty, in number; of one shard alone there is no half.

    >>> half({ShardId(0): 2, ShardId(1): 2, ShardId(2): 2, ShardId(3): 2, ShardId(7): 6})
    [2, 3]
    >>> half({ShardId(0): 5, ShardId(1): 4, ShardId(2): 3, ShardId(3): 2})
    [2, 3]
    """
    chosen: list[ShardId] = []
    more, many = 0, 0  # by how many bytes, and shards, the half that stays is ahead
    for first, last in ranges.merge(ranges.Range(shard, shard) for shard in sizes):
        run = [ShardId(shard) for shard in range(first, last + 1)]
        more, many = more + sum(sizes[shard] for shard in run), many + len(run)
        best, cut = (more, many), len(run)
        for place in range(len(run) - 1, -1, -1):
            more, many = more - 2 * sizes[run[place]], many - 2
            if (abs(more), abs(many)) < (abs(best[0]), abs(best[1])):
                best, cut = (more, many), place
        more, many = best
        chosen += run[cut:]
    return chosen
