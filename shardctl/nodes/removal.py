"""`node remove`: take an empty node out of the poolers, the databases and the topology."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.balance import carry, draining
from shardctl.errors import Incomplete, Misused, Problems, Refused, ShardctlError, together
from shardctl.moves import doctor, reversing
from shardctl.moves import ledger as ledgers
from shardctl.moves import prune as pruning
from shardctl.nodes import line, removal_proof, silence
from shardctl.nodes.removal_proof import Facts
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import maps, topology_file
from shardctl.provision import poolers as pooling
from shardctl.provision.observe import observe
from shardctl.provision.plan import Change
from shardctl.provision.refusals import OwnershipDiffers
from shardctl.state import cluster, events, lock, rebalances
from shardctl.topology.edit_entries import remove_entry
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.fanout import Progress
    from shardctl.moves.prune_drop import Retired
    from shardctl.nodes.line import Values
    from shardctl.nodes.removal_proof import Allowed
    from shardctl.provision.poolers import PoolersPlan
    from shardctl.topology.model import Topology

COMMAND = "node remove"


@dataclass(frozen=True, slots=True)
class Removal:
    """What removes a node; `member` is whether its server has a map to forget."""

    topology: Topology
    name: NodeName
    allowed: Allowed
    file: topology_file.Change
    poolers: PoolersPlan
    map_version: int
    line: Values
    member: bool
    finishing: tuple[str, ...]
    """Moves that can no longer be reversed then."""
    pruning: tuple[Retired, ...]
    drained: bool

    @property
    def again(self) -> str:
        """The command that adds the node back."""
        return line.command(self.name, self.line)

    def changes(self) -> list[Change]:
        """List what it changes, in the order of execution."""
        found = [Change("finish", "reverse", self.name, name=move) for move in self.finishing]
        found += [Change("drop", "retired copy", self.name, name=o.schema) for o in self.pruning]
        for one in self.poolers.changes():
            pooler = one.seen.pooler
            found.append(
                Change(
                    "write" if one.action == "write" else "reload",
                    "aliases",
                    None,
                    name=str(pooler.databases_file),
                    pooler=pooler.name,
                )
            )
        if self.drained:
            found.append(Change("drop", "drain", self.name))
        if self.member:
            found.append(Change("drop", "map", self.name))
        return [*found, Change("drop", "topology", self.name, name=str(self.topology.path))]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without the state."""
        return {
            "cluster": self.topology.cluster,
            "node": self.name,
            "lost": self.allowed.lost,
            "changes": [change.as_json() for change in self.changes()],
            "add_again": self.again,
        }


def plan(topology: Topology, name: str, allowed: Allowed) -> Removal:
    """Prove that a node is empty, and plan; changes nothing.

    Raises node_not_found, last_node, node_not_empty, rebalance_open, move_unfinished,
    reverse_open, node_unread, node_answers, NodeLocked, and what
    `maps.version`, `topology_file.plan` and the plan of the poolers raise, or Problems of several.
    """
    node = NodeName(name)
    if node not in topology.nodes:
        raise Misused(
            "node_not_found",
            f"unknown node {name!r}: it is not in {topology.path}",
            hint=f"nodes: {', '.join(topology.nodes)}",
        )
    purpose = lock.purpose(COMMAND)
    known = rebalances.read(topology, purpose=purpose)
    carry.require_without(known, node, going_on=not allowed.lost)
    try:
        removal_proof.require_owns_nothing(topology, node)
    except Refused:
        _require_newest(topology)
        raise
    version = maps.version(topology, purpose=purpose)
    facts = look(topology, node, allowed)
    if problems := list(removal_proof.missing(topology, node, facts, allowed)):
        raise together(problems)
    file = topology_file.plan(topology, partial(remove_entry, path=line.path(name)))
    after = file.after
    poolers = pooling.plan(
        after, list(after.poolers.values()), version, force=False, purpose=purpose
    )
    seen = facts.fleet.nodes.get(node)
    removal = Removal(
        topology,
        node,
        allowed,
        file,
        poolers,
        version,
        line.written(topology, name),
        member=seen is not None and bool(seen.map),
        finishing=tuple(e.move.id for e in facts.reverses(node, lost=allowed.lost)),
        pruning=tuple(facts.retired),
        drained=node in known.drained,
    )
    lock.require_all_free(topology, _to_lock(removal), command=COMMAND)
    return removal


def _require_newest(topology: Topology) -> None:
    """See that no map contradicts the file, as far as nodes answer; raises OwnershipDiffers."""
    try:
        maps.version(topology, purpose=lock.purpose(COMMAND))
    except ShardctlError as error:
        if stale := [one for one in error.parts() if isinstance(one, OwnershipDiffers)]:
            raise together(stale) from error


def look(topology: Topology, node: NodeName, allowed: Allowed) -> Facts:
    """Ask all nodes; raises node_unread of this one, or with `lost` node_answers."""
    purpose = lock.purpose(COMMAND)
    fleet = doctor.look(topology, purpose=purpose)
    if allowed.lost:
        silence.require(topology, topology.nodes[node], purpose=purpose)
        return Facts(fleet, ())
    if node not in fleet.nodes:
        _require_without_database(topology, node)
    return Facts(fleet, _retired(topology, node, now=allowed.prune))


def _retired(topology: Topology, node: NodeName, *, now: bool) -> list[Retired]:
    """List the retired copies on the node, and why they may not be dropped."""
    purpose = lock.purpose(COMMAND)
    known = ledgers.read(topology, purpose=purpose)
    found = pruning.plan(topology, known, accept_unconfirmed=False, now=now, purpose=purpose)
    return [one for one in found if one.node == node]


def _require_without_database(topology: Topology, node: NodeName) -> None:
    """See that a node that could not be asked is there, and has no database; raises node_unread."""
    try:
        found = observe(topology, topology.nodes[node], command=COMMAND, tables=())
    except NodeUnavailable as error:
        raise Refused(
            "node_unread",
            f"{error.message}; so nothing proves that the node is empty",
            hint="start its server and run the command again; if it is destroyed, or never ran, "
            f"run `shardctl node remove {node} --lost`",
        ) from error
    if found.database:  # it could be asked by now
        raise Refused(
            "node_unread",
            f"node {node} could not be read a moment ago",
            hint="run the command again",
        )


def _to_lock(removal: Removal) -> list[NodeName]:
    names = [node.name for node in removal.topology.owning()]
    return [*names, removal.name] if removal.member else names


def carry_out(removal: Removal, progress: Progress, notice: Callable[[str], None]) -> None:
    """Remove the node, under the locks of all nodes that own shards, and its own.

    The file is last: until it is written, the same command finishes what was begun. Raises
    NodeLocked, also of a rebalance that is carried out, what `plan` raises, Problems of poolers,
    topology_not_written.
    """
    topology, name = removal.topology, removal.name
    begun = bool(removal.finishing or removal.pruning)
    reversing.finish_each(topology, removal.finishing, notice=notice)
    if removal.pruning:
        _prune(removal, progress)
    to_lock = _to_lock(removal)
    with (
        rebalances.held(topology, to_lock, command=COMMAND),
        lock.held(topology, to_lock, command=COMMAND) as locks,
    ):
        known = rebalances.read(topology, purpose=lock.purpose(COMMAND))
        carry.require_without(known, name, going_on=not removal.allowed.lost)
        maps.require(topology, removal.map_version, purpose=lock.purpose(COMMAND))
        facts = look(topology, name, removal.allowed)
        if problems := list(removal_proof.missing(topology, name, facts, removal.allowed)):
            raise Problems(problems, exit_code=3 if begun else None)
        if errors := pooling.carry_out(removal.poolers, locks, progress, command=COMMAND):
            raise Problems(errors)
        draining.forget(topology, name, known, command=COMMAND)
        if removal.member:
            cluster.forget_map(locks[name])
        for session in locks.values():
            events.record(session, COMMAND, f"node {name}: removed")
        removal.file.write(
            begun=begun or removal.member or removal.drained or bool(removal.poolers.changes())
        )


def _prune(removal: Removal, progress: Progress) -> None:
    """Drop the retired copies on the node; raises what `prune` raises."""
    found = _retired(removal.topology, removal.name, now=True)
    if kept := [one for one in found if one.why_not is not None]:
        raise Incomplete(
            "node_not_empty",
            f"node {removal.name}: {kept[0].schema} cannot be dropped: {kept[0].why_not}",
            hint="run `shardctl prune --dry-run` to see all retired copies and why",
        )
    pruning.carry_out(removal.topology, found, progress)
