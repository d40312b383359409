"""The plan of a rebalance as it is saved: in a file for review, and in the databases once begun."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from shardctl.errors import Misused, Refused
from shardctl.moves import plan as planning
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from shardctl.balance.fleet import Balance
    from shardctl.topology.model import NodeName, Topology

_FORMAT = 1
_LARGEST_FILE = 64 << 20
"""A plan of 8,192 moves has about 3 MB; a larger file was given by mistake."""

# A saved plan can be edited, so it is read as strictly as a command line.
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Measure = Annotated[float, Field(ge=0, lt=1e18, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One move of a saved plan; `move` is its id, which it gets when the rebalance begins."""

    source: Text
    target: Text
    shards: tuple[Count, ...]
    size_bytes: Count
    predicted_copy_s: Measure
    predicted_pause_ms: Measure
    why: Text
    move: Text | None = None


@dataclass(frozen=True, slots=True)
class NodeThen:
    """A node of the fleet for which a plan was made."""

    name: Text
    host: Text
    port: int
    shards: tuple[Count, ...]
    drained: bool


@dataclass(frozen=True, slots=True)
class NodePlanned:
    """A node before and after a plan; loads are in the unit of `by`."""

    name: Text
    share: Measure
    alone: Count | None
    load: Measure
    load_after: Measure
    size_bytes: Count
    size_after_bytes: Count
    shard_count: Count
    shard_count_after: Count


@dataclass(frozen=True, slots=True)
class ShardStuck:
    """A shard that should leave its node, and that no other node has room for."""

    shard: Count
    node: Text
    size_bytes: Count
    why: Text


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The moves of a rebalance in their order, and the fleet for which they were planned.

    `drain` is the node that is to be empty afterwards, if that is what it is for. `options` are
    those of every move, once it has begun.
    """

    format: int
    cluster: Text
    by: Text
    drain: Text | None
    fleet: tuple[NodeThen, ...]
    nodes: tuple[NodePlanned, ...]
    moves: tuple[PlannedMove, ...]
    stuck: tuple[ShardStuck, ...]
    moves_left_out: Count
    notes: tuple[Text, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self)

    def named(self) -> set[str]:
        """Give the nodes that it drains, or moves shards from or to."""
        ends = {name for one in self.moves for name in (one.source, one.target)}
        return ends if self.drain is None else ends | {self.drain}

    def begun(self, options: Mapping[str, Any]) -> GroupPlan:
        """Give every move an id."""
        moves = tuple(replace(one, move=planning.new_id()) for one in self.moves)
        return replace(self, moves=moves, options=dict(options))

    def again(self, aborted: Collection[str]) -> GroupPlan:
        """Give moves that were aborted new ids."""
        moves = tuple(
            replace(one, move=planning.new_id()) if one.move in aborted else one
            for one in self.moves
        )
        return replace(self, moves=moves)


_ADAPTER = TypeAdapter(GroupPlan)


def of(
    topology: Topology,
    balance: Balance,
    moves: Collection[PlannedMove],
    *,
    by: str,
    drain: NodeName | None,
    drained: Collection[str],
    notes: Collection[str],
) -> GroupPlan:
    """Give a plan to save."""
    return GroupPlan(
        _FORMAT,
        topology.cluster,
        by,
        drain,
        fleet=tuple(_then(topology, drained)),
        nodes=tuple(
            NodePlanned(
                one.node,
                one.share,
                one.alone,
                *one.loads,
                *one.bytes,
                *one.shards,
            )
            for one in balance.nodes
        ),
        moves=tuple(moves),
        stuck=tuple(ShardStuck(s.shard, s.node, s.bytes, s.why) for s in balance.stuck),
        moves_left_out=balance.left_out,
        notes=tuple(notes),
    )


def of_json(value: Mapping[str, Any]) -> GroupPlan:
    """Read a plan from the databases; raises ValidationError."""
    return _ADAPTER.validate_python(value)


def read(path: Path) -> GroupPlan:
    """Read a saved plan; raises plan_unreadable."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise _unreadable(path, "it is larger than 64 MB, so it is not a plan")
        found = _ADAPTER.validate_json(content)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        why = f"{place}: {first['msg']}" if place else first["msg"]
        raise _unreadable(path, f"it is not a plan: {why}") from error
    if found.format != _FORMAT:
        raise _unreadable(path, f"it has format {found.format}, and this shardctl reads {_FORMAT}")
    if bad := [one for one in found.moves if not one.shards]:
        raise _unreadable(path, f"its move from {bad[0].source} to {bad[0].target} has no shards")
    often = Counter(shard for one in found.moves for shard in one.shards)
    if twice := [shard for shard, times in often.items() if times > 1]:
        raise _unreadable(path, f"it moves shards {ranges.of(twice)} more than once")
    return found


def require_same(plan: GroupPlan, topology: Topology, drained: Collection[str]) -> None:
    """Refuse a plan whose fleet has changed since it was made, naming what changed.

    Raises fleet_changed.
    """
    if changed := list(_changes(plan, topology, drained)):
        raise Refused(
            "fleet_changed",
            "the fleet has changed since this plan was made: " + "; ".join(changed),
            hint="make a new plan with `shardctl rebalance plan`",
        )


def _changes(plan: GroupPlan, topology: Topology, drained: Collection[str]) -> Iterator[str]:
    if plan.cluster != topology.cluster:
        yield f"it is for cluster {plan.cluster}, and this is {topology.cluster}"
        return
    then = {one.name: one for one in plan.fleet}
    now = {one.name: one for one in _then(topology, drained)}
    yield from (f"node {name} is no longer in the topology" for name in then if name not in now)
    yield from (f"node {name} is new" for name in now if name not in then)
    yield from _moved(then, now)
    yield from _impossible(plan, topology, drained)
    for name in (name for name in then if name in now):
        was, is_now = then[name], now[name]
        if (was.host, was.port) != (is_now.host, is_now.port):
            yield f"node {name} was at {was.host}:{was.port} and is at {is_now.host}:{is_now.port}"
        if was.drained != is_now.drained and plan.drain != name:
            yield f"node {name} is {'now' if is_now.drained else 'no longer'} drained"


def _moved(then: Mapping[str, NodeThen], now: Mapping[str, NodeThen]) -> Iterator[str]:
    """Report shards that have another node."""
    owner = {shard: name for name, one in now.items() for shard in one.shards}
    went: dict[tuple[str, str], list[int]] = {}
    for name, one in then.items():
        for shard in one.shards:
            if (at := owner.get(shard, name)) != name:
                went.setdefault((name, at), []).append(shard)
    for (name, at), shards in went.items():
        yield f"shards {ranges.of(shards)} went from node {name} to node {at}"


def _impossible(plan: GroupPlan, topology: Topology, drained: Collection[str]) -> Iterator[str]:
    """Report moves that cannot be made, as in a plan that was edited."""
    owners: dict[int, str] = {s: n.name for n in topology.nodes.values() for s in n.shards}
    for number, one in enumerate(plan.moves, 1):
        wrong = [shard for shard in one.shards if owners.get(shard) != one.source]
        if wrong:
            yield f"move {number} takes shards {ranges.of(wrong)}, which node {one.source} lacks"
        if one.target not in topology.nodes:
            yield f"move {number} gives shards to node {one.target}, which is not in the topology"
        elif one.target in drained:
            yield f"move {number} gives shards to node {one.target}, which is drained"
        elif one.target == one.source:
            yield f"move {number} gives node {one.target} its own shards"


def _then(topology: Topology, drained: Collection[str]) -> Iterator[NodeThen]:
    for node in topology.nodes.values():
        yield NodeThen(node.name, node.host, node.port, node.shards, node.name in drained)


def _unreadable(path: Path, why: str) -> Misused:
    return Misused(
        "plan_unreadable",
        f"{path}: {why}",
        hint="give a file that `shardctl rebalance plan --out` has written",
    )
