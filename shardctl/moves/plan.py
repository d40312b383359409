"""What a move is to do, decided before it begins; pure."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from shardctl.errors import ShardctlError, UsageError
from shardctl.state import journal
from shardctl.topology import aliases, names, ranges
from shardctl.topology.model import CloneWith, Node, NodeName, Pooler, ShardId
from shardctl.topology.routes import ShardNotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology

METHOD = "clone"
"""How shards get to another node, unless another method is asked for."""
RENAME = "rename"
TRIGGERS = "triggers"
"""Names of fences: what keeps clients from the moved shards on the source."""

_POOLERS = "poolers."

_INDIFFERENT = ("shards", "migrations", "keys", "control", "relative")
"""What a move does not depend on, changes itself, or may need corrected; or stands elsewhere."""


class MoveRefused(ShardctlError):
    """A move that cannot be, by the topology alone."""


class TopologyChanged(ShardctlError):
    """A topology that is not the one with which the move began."""

    def __init__(self, move: str, what: str, was: str, now: str) -> None:
        super().__init__(
            f"move {move} began with {what} {was}, and the topology now says {now}",
            hint="put that back as it was, then run the command again",
        )


class PlanUnreadable(ShardctlError):
    """A plan in the journal that another version of shardctl has written."""

    def __init__(self, move: str, why: str) -> None:
        super().__init__(
            f"move {move}: this version of shardctl does not understand its plan: {why}",
            hint="go on with the version that began it",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """How a move is carried out; times in seconds, the rate as pg_basebackup takes it."""

    max_pause_s: float
    retain_s: float
    max_rate: str | None = None
    terminate: bool = False
    read_only: bool = False
    duplicate_shared: bool = False
    ignore_standby: bool = False
    clone_with: CloneWith = "basebackup"
    max_wal_bytes: int | None = None
    """WAL that the source keeps for the move at most; None until that is decided."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Which shards go from where to where, under which names, and what the topology said."""

    id: str
    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    schemas: tuple[str, ...]
    retired: tuple[str, ...]
    map_version: int
    """The version of the map before; the claim writes the next one."""
    digest: str
    """Of what the topology says of everything that the move depends on."""
    said: dict[str, str]
    """That, by its place in the file; told when it differs later."""
    options: Options
    method: str = METHOD
    waiting: str = RENAME
    """The fence of its method, under which clients wait."""

    @property
    def fence(self) -> str:
        """The name of its fence: nothing else asks whether the move is to refuse writes."""
        return TRIGGERS if self.options.read_only else self.waiting

    @property
    def slot(self) -> str:
        """The replication slot of this move."""
        return journal.slot(self.id)

    def as_json(self) -> dict[str, Any]:
        """Give what the journal keeps in `plan`, beside its own columns."""
        return {
            "map_version": self.map_version,
            "digest": self.digest,
            "said": self.said,
            "options": asdict(self.options),
            "fence": self.waiting,
        }

    @classmethod
    def of_journal(cls, move: Move) -> MovePlan:
        """Read a plan back from the journal; raises PlanUnreadable."""
        try:
            return cls(
                id=move.id,
                source=NodeName(move.source),
                target=NodeName(move.target),
                shards=tuple(ShardId(s) for s in move.shards),
                schemas=move.schemas,
                retired=move.retired,
                map_version=move.plan["map_version"],
                digest=move.plan["digest"],
                said=dict(move.plan["said"]),
                options=_options(move.id, move.plan["options"]),
                method=move.method,
                waiting=move.plan.get("fence", RENAME),
            )
        except KeyError as error:
            raise PlanUnreadable(move.id, f"it has no {error.args[0]}") from error


def make(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    map_version: int,
    options: Options,
) -> MovePlan:
    """Plan a move of some shards of one node; raises UsageError and MoveRefused."""
    if target not in topology.nodes:
        raise UsageError(
            f"{target!r} is no node of the topology", hint=f"its nodes: {', '.join(topology.nodes)}"
        )
    chosen = tuple(sorted({ShardId(shard) for shard in shards}))
    if not chosen:
        raise UsageError("no shards were named", hint="name some, such as 2-3,17")
    owners = topology.owners()
    for shard in chosen:
        if shard not in owners:
            raise ShardNotFound(shard, topology.shard_count)
    sources = {owners[shard] for shard in chosen}
    to = NodeName(target)
    if to in sources:
        there = ranges.of(s for s in chosen if owners[s] == to)
        raise MoveRefused(f"shards {there} are on node {to} already", hint="name other shards")
    if len(sources) > 1:
        parts = "; ".join(
            f"{node}: {ranges.of(s for s in chosen if owners[s] == node)}"
            for node in sorted(sources)
        )
        raise MoveRefused(
            f"the shards are on several nodes ({parts})",
            hint="move those of one node at a time: a move clones one source",
        )
    (source,) = sources
    move = secrets.token_hex(4)
    schemas = tuple(topology.schema(shard) for shard in chosen)
    said = depends_on(topology, source, to)
    return MovePlan(
        id=move,
        source=source,
        target=to,
        shards=chosen,
        schemas=schemas,
        retired=tuple(names.retired(schema, move) for schema in schemas),
        map_version=map_version,
        digest=digest(said),
        said=said,
        options=options,
    )


def require_without_shards(target: Node) -> None:
    """Accept a node as the target of a clone; raises MoveRefused."""
    if target.shards:
        raise MoveRefused(
            f"node {target.name} owns shards {ranges.of(target.shards)} already",
            hint="a clone needs a node without shards: add one to the topology",
        )


def _options(move: str, kept: Mapping[str, Any]) -> Options:
    """Read options back; those that are younger than the plan are as if they were not given."""
    unknown = sorted(kept.keys() - {one.name for one in fields(Options)})
    if unknown:
        raise PlanUnreadable(move, f"it has an option {unknown[0]}")
    way = kept.get("clone_with", "basebackup")
    if way not in get_args(CloneWith):
        raise PlanUnreadable(move, f"its clone_with is {way}")
    needed = {name: kept[name] for name in ("max_pause_s", "retain_s")}
    return Options(**{**needed, **kept})


def after(topology: Topology, plan: MovePlan) -> Topology:
    """Give the topology as it is when the move is done."""
    source, target = topology.nodes[plan.source], topology.nodes[plan.target]
    moved = set(plan.shards)
    nodes = {
        **topology.nodes,
        source.name: replace(source, shards=tuple(s for s in source.shards if s not in moved)),
        target.name: replace(target, shards=tuple(sorted({*target.shards, *moved}))),
    }
    return replace(topology, nodes=nodes)


def before(topology: Topology, plan: MovePlan) -> Topology:
    """Give the topology as it was before the move, whether the file says so yet or not."""
    source, target = topology.nodes[plan.source], topology.nodes[plan.target]
    moved = set(plan.shards)
    nodes = {
        **topology.nodes,
        source.name: replace(source, shards=tuple(sorted({*source.shards, *moved}))),
        target.name: replace(target, shards=tuple(s for s in target.shards if s not in moved)),
    }
    return replace(topology, nodes=nodes)


def leaving(topology: Topology, plan: MovePlan) -> tuple[str, ...]:
    """Name the live schemas that the clone has and does not own: those of shards that stay.

    `topology` is that of before the move.
    """
    moved = set(plan.shards)
    return tuple(topology.schema(s) for s in topology.nodes[plan.source].shards if s not in moved)


def paused(topology: Topology, plan: MovePlan, pooler: Pooler) -> tuple[str, ...]:
    """Name the aliases that lead to what moves: those of its shards, and of its node."""
    found: list[str] = []
    if "node" in pooler.aliases:
        found.append(aliases.of_node(topology.database.name, plan.source))
    if "shard" in pooler.aliases:
        found += plan.schemas
    return tuple(found)


def offered(topology: Topology, pooler: Pooler) -> int:
    """Count the aliases that a pooler offers."""
    nodes = len(topology.nodes) if "node" in pooler.aliases else 0
    return nodes + (topology.shard_count if "shard" in pooler.aliases else 0)


def depends_on(topology: Topology, source: NodeName, target: NodeName) -> dict[str, str]:
    """Tell what a move depends on, by its place in the file: nodes, database, poolers, ids.

    Which shards they own is left out: the move itself changes that.
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
    # Another operator may log in there as somebody else, with a key that lies elsewhere.
    said |= {
        f"{place}.ssh": str(part.ssh and (part.ssh.host or part.host))
        for place, part in parts.items()
        if isinstance(part, Node | Pooler)
    }
    said |= {"cluster": topology.cluster, "shards.count": str(topology.shard_count)}
    return said | {"shards.schema": str(topology.schema_pattern)}


def digest(said: Mapping[str, str]) -> str:
    """Sum up what `depends_on` tells.

    >>> digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})
    True
    """
    return hashlib.sha256(repr(sorted(said.items())).encode()).hexdigest()


def missing_poolers(topology: Topology, plan: MovePlan) -> dict[str, tuple[str, int]]:
    """Give host and port of the poolers that the topology had when the move began, and has not."""
    held = {_part(place).partition(".")[2] for place in plan.said if place.startswith(_POOLERS)}
    return {
        name: (plan.said[f"{_POOLERS}{name}.host"], int(plan.said[f"{_POOLERS}{name}.port"]))
        for name in sorted(held - set(topology.poolers))
    }


def require_same(topology: Topology, plan: MovePlan, *, gone: Collection[str] = ()) -> None:
    """Refuse to go on with another topology than the move began with; raises TopologyChanged.

    A field of a node or pooler that only one of two versions of shardctl knows is no change, and
    poolers that are `gone` need not be in it any more.
    """
    now = depends_on(topology, plan.source, plan.target)
    left_out = {f"{_POOLERS}{name}" for name in gone}
    if digest(now) == plan.digest:
        return
    for node in (plan.source, plan.target):
        if node not in topology.nodes:
            raise TopologyChanged(plan.id, "node", node, "that there is none")
    parts = {_part(place) for place in plan.said} & {_part(place) for place in now}
    for place in sorted({*plan.said, *now}):
        if _part(place) in left_out:
            continue
        was, is_now = (one.get(place, "nothing") for one in (plan.said, now))
        unknown = place not in plan.said or place not in now
        if was != is_now and not (unknown and _part(place) in parts):
            raise TopologyChanged(plan.id, place, was, is_now)


def _part(place: str) -> str:
    """Give what a field belongs to: `nodes.a` of `nodes.a.host`."""
    return place.rpartition(".")[0]


def half(sizes: Mapping[ShardId, int]) -> list[ShardId]:
    """Choose about half of the shards, such that both halves weigh about the same.

    The largest first, each to the side that is lighter so far; of one shard alone there is no
    half.

    >>> half({ShardId(0): 5, ShardId(1): 4, ShardId(2): 3, ShardId(3): 2})
    [1, 2]
    """
    stay = go = (0, 0)  # bytes, then shards, for those that are empty
    chosen: list[ShardId] = []
    for shard, size in sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0])):
        if go < stay:
            go = (go[0] + size, go[1] + 1)
            chosen.append(shard)
        else:
            stay = (stay[0] + size, stay[1] + 1)
    return sorted(chosen)
