"""`node lost`: the shards of a destroyed node get another owner, restored there or empty."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.balance import carry
from shardctl.errors import Misused, Refused, together
from shardctl.moves import ledger as ledgers
from shardctl.nodes import line, silence
from shardctl.provision import fleet, topology_file
from shardctl.provision.plan import Change
from shardctl.provision.scope import Scope
from shardctl.state import cluster, events, lock, observer, rebalances
from shardctl.topology.edit import replace_scalars
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.provision.fleet import FleetPlan
    from shardctl.topology.model import Node, ShardId, Topology

COMMAND = "node lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """What gives a lost node's shards to another; `file` is None where that is in it already."""

    name: NodeName
    to: NodeName
    shards: tuple[ShardId, ...]
    adopt: bool
    file: topology_file.Change | None
    fleet: FleetPlan

    def changes(self) -> list[Change]:
        """List what it changes, in the order of execution."""
        path = str(self.fleet.topology.path)
        written = [Change("write", "topology", self.to, self.shards, path)] if self.file else []
        return [*written, *self.fleet.changes()]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without the state."""
        return {
            "cluster": self.fleet.topology.cluster,
            "node": self.name,
            "to": self.to,
            "shards": list(self.shards),
            "changes": [change.as_json() for change in self.changes()],
        }


def plan(topology: Topology, name: str, to: str, *, adopt: bool = False) -> Loss:
    """See that a node does not answer, and plan; changes nothing.

    `adopt` takes over schemas of its shards that were restored on `to`, as having all migrations.
    Raises node_not_found, node_answers, move_unfinished, rebalance_open, schema_in_the_way without
    `adopt`, and what `plan_init` and `topology_file.plan` raise, or Problems of several.
    """
    for one in (name, to):
        if one not in topology.nodes or name == to:
            raise Misused(
                "node_not_found",
                f"unknown node {one!r}" if name != to else f"node {to} cannot replace itself",
                hint=f"nodes: {', '.join(topology.nodes)}",
            )
    lost, target = NodeName(name), NodeName(to)
    silence.require(topology, topology.nodes[lost], purpose=lock.purpose(COMMAND))
    _require_no_move(topology, lost)
    known = rebalances.read(topology, purpose=lock.purpose(COMMAND))
    carry.require_without(known, lost, going_on=False)
    shards = _shards(topology, lost)
    values = {
        (*line.path(one), "shards"): line.shards(owned)
        for one, owned in {
            lost: (),
            target: (*topology.nodes[target].shards, *topology.nodes[lost].shards),
        }.items()
    }
    moved = bool(topology.nodes[lost].shards)
    file = topology_file.plan(topology, partial(replace_scalars, values=values)) if moved else None
    after = file.after if file else topology
    scope = Scope(lost=lost, everywhere=True)
    found = fleet.plan_init(after, adopt=adopt, command=COMMAND, scope=scope)
    fleet.require_free(found)
    return Loss(lost, target, shards, adopt, file, found)


def _shards(topology: Topology, lost: NodeName) -> tuple[ShardId, ...]:
    """List the shards that the file or the map of any other node gives to a lost node."""
    found = set(topology.nodes[lost].shards)
    others = [node for node in topology.nodes.values() if node.name != lost]
    maps = observer.ask(topology, _map, purpose=lock.purpose(COMMAND), nodes=others).every()
    for owners in maps.values():
        found |= {shard for shard, owner in owners.items() if owner == lost}
    return tuple(sorted(found))


def _map(session: Connection, node: Node) -> Mapping[ShardId, NodeName]:
    del node
    return cluster.read_map(session) if cluster.is_present(session) else {}


def _require_no_move(topology: Topology, lost: NodeName) -> None:
    """See that no move names the node; raises move_unfinished."""
    known = ledgers.read(topology, purpose=lock.purpose(COMMAND))
    open_ones = [e.move for e in known.entries if e.open and lost in (e.move.source, e.move.target)]
    problems = [
        Refused(
            "move_unfinished",
            f"move {move.id} from node {move.source} to node {move.target} is unfinished",
            hint=f"run `shardctl moves resume {move.id} --source-destroyed`"
            if move.source == lost
            else f"run `shardctl moves abort {move.id} --target-destroyed`",
        )
        for move in open_ones
    ]
    if problems:
        raise together(problems)


def carry_out(loss: Loss, progress: Progress, notice: Callable[[str], None]) -> None:
    """Give the shards to the other node, under the locks of all that own shards.

    The file is first, the whole map last: until then the maps lack the rows of these shards, so
    that no application takes a part of them for the map of the new version. Raises what `init`
    raises.
    """
    plan = loss.fleet
    shards = (
        f"shards {line.shards(loss.shards)} go" if loss.shards else "the rest of its shards goes"
    )

    def begin(locks: Mapping[NodeName, Connection]) -> None:
        if loss.file is not None:
            loss.file.write()
        for session in locks.values():
            events.record(session, COMMAND, f"node {loss.name} is lost: {shards} to {loss.to}")
            cluster.drop_from_map(session, loss.name, plan.map_version)

    fleet.carry_out(plan, fleet.Options(adopt=loss.adopt), progress, notice, begin=begin)
