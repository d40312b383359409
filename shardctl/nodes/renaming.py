"""`node rename`: another name for a node in poolers, databases and topology."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.balance import carry, draining
from shardctl.errors import Misused, Problems, Refused, ShardctlError, together
from shardctl.moves import ledger as ledgers
from shardctl.nodes import line
from shardctl.postgres import queries
from shardctl.provision import maps, topology_file
from shardctl.provision import poolers as pooling
from shardctl.provision.plan import Change
from shardctl.provision.refusals import ownership
from shardctl.state import cluster, events, lock, observer, rebalances
from shardctl.topology.edit_entries import rename_entry
from shardctl.topology.model import NodeName
from shardctl.topology.problems import TopologyInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.provision.poolers import PoolersPlan
    from shardctl.state.cluster import ClusterRow
    from shardctl.topology.model import Node, ShardId, Topology

COMMAND = "node rename"
QUERIES = queries.load("shardctl.nodes", "renaming.sql")


@dataclass(frozen=True, slots=True)
class Records:
    """What a member has of nodes' names."""

    row: ClusterRow
    map: Mapping[ShardId, NodeName]
    retired: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Renaming:
    """What renames a node; `file` is None where only the poolers are left.

    `both` gives the poolers aliases of both names, `last` takes the old ones away.
    """

    topology: Topology
    old: NodeName
    new: NodeName
    file: topology_file.Change | None
    members: tuple[NodeName, ...]
    """The nodes whose records change, the renamed one first."""
    version: int
    both: PoolersPlan | None
    last: PoolersPlan | None
    drained: bool = False

    def changes(self) -> list[Change]:
        """List what it changes, in the order of execution."""
        found = _of_poolers(self.both)
        if self.drained:
            found.append(Change("rename", "drain", self.old))
        for member in self.members:
            found.append(Change("rename", "map", member, name=f"version {self.version}"))
        if self.file:
            path = str(self.topology.path)
            found.append(Change("rename", "topology", self.old, name=path))
        return found + _of_poolers(self.last)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without the state."""
        return {
            "cluster": self.topology.cluster,
            "node": self.old,
            "new_name": self.new,
            "changes": [change.as_json() for change in self.changes()],
        }


def _of_poolers(plan: PoolersPlan | None) -> list[Change]:
    return [
        Change(
            "write" if one.action == "write" else "reload",
            "aliases",
            None,
            name=str(one.seen.pooler.databases_file),
            pooler=one.seen.pooler.name,
        )
        for one in (plan.changes() if plan else ())
    ]


def plan(topology: Topology, old: str, new: str, *, keep_alias: bool = False) -> Renaming:
    """Check all nodes, and plan; changes nothing. `keep_alias` leaves the old alias to poolers.

    Raises node_not_found, node_exists, node_invalid, node_unfit, node_not_empty, rebalance_open,
    move_unfinished, reverse_open, OwnershipDiffers, NodeUnavailable, and what plans of
    file and poolers raise.
    """
    first, second = NodeName(old), NodeName(new)
    if first not in topology.nodes:
        return _rest(topology, first, second, keep_alias=keep_alias)
    file = _change(topology, first, second)
    known = rebalances.read(topology, purpose=lock.purpose(COMMAND))
    carry.require_without(known, first)
    records = look(topology)
    version = _require_ready(topology, file.after, first, second, records)
    members = _outdated(first, second, records, version)
    purpose = lock.purpose(COMMAND)
    poolers = list(topology.poolers.values())
    at = max((one.row.map_version for one in records.values()), default=0)
    both = pooling.plan(
        _with_both(topology, first, second), poolers, at, force=False, purpose=purpose
    )
    last = pooling.plan(file.after, poolers, version, force=False, purpose=purpose)
    found = Renaming(
        topology,
        first,
        second,
        file,
        members,
        version,
        both,
        None if keep_alias else last,
        drained=first in known.drained,
    )
    lock.require_all_free(topology, _to_lock(found, records), command=COMMAND)
    return found


def _rest(topology: Topology, old: NodeName, new: NodeName, *, keep_alias: bool) -> Renaming:
    """Plan what is left when the file has the new name already; raises node_not_found."""
    if new not in topology.nodes:
        raise Misused(
            "node_not_found",
            f"unknown node {old!r}: it is not in {topology.path}",
            hint=f"nodes: {', '.join(topology.nodes)}",
        )
    purpose = lock.purpose(COMMAND)
    version = maps.version(topology, purpose=purpose)
    poolers = list(topology.poolers.values())
    last = pooling.plan(topology, poolers, version, force=False, purpose=purpose)
    return Renaming(topology, old, new, None, (), version, None, None if keep_alias else last)


def _change(topology: Topology, old: NodeName, new: NodeName) -> topology_file.Change:
    if new in topology.nodes:
        raise Misused(
            "node_exists",
            f"{topology.path} has a node {new} already",
            hint="choose another name",
        )
    try:
        return topology_file.plan(
            topology, partial(rename_entry, path=line.path(old), name=str(new))
        )
    except TopologyInvalid as error:
        raise Misused(
            "node_invalid",
            "; ".join(f"{one.path}: {one.message}" for one in error.problems),
            hint="choose another name: nothing was changed",
        ) from error


def _with_both(topology: Topology, old: NodeName, new: NodeName) -> Topology:
    """Give the topology with a second, empty node of the new name at the same address."""
    other = replace(topology.nodes[old], name=new, shards=())
    return replace(topology, nodes={**topology.nodes, new: other})


def look(topology: Topology) -> dict[NodeName, Records]:
    """Ask all nodes; those without records are left out. Raises NodeUnavailable, or Problems."""
    asked = observer.ask(topology, _records, purpose=lock.purpose(COMMAND)).every()
    return {name: one for name, one in asked.items() if one is not None}


def _records(session: Connection, node: Node) -> Records | None:
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None or cluster.is_clone_of_a_move(session, node):
        return None
    retired = tuple(name for (name,) in session.execute(QUERIES["retired"]))
    return Records(row, cluster.read_map(session), retired)


def _require_ready(
    topology: Topology,
    after: Topology,
    old: NodeName,
    new: NodeName,
    records: Mapping[NodeName, Records],
) -> int:
    """See that nothing is in the way, and give the map's next version.

    A run that was killed has changed the records of some nodes.
    """
    problems: list[ShardctlError] = []
    for name, one in records.items():
        wanted = (old, new) if name == old else (name,)
        if one.row.cluster != topology.cluster or one.row.node not in wanted:
            problems.append(
                Refused(
                    "node_unfit",
                    f"node {name}: the server is node {one.row.node} of cluster {one.row.cluster}",
                    hint="correct the node's host and port in the topology",
                )
            )
    renamed = {
        name: {shard: new if owner == old else owner for shard, owner in one.map.items()}
        for name, one in records.items()
    }
    problems += ownership(after, renamed)
    problems += _needed(topology, old, records)
    if problems:
        raise together(problems)
    if not records or max(one.row.map_version for one in records.values()) == 0:
        raise maps.map_unwritten()
    return max(one.row.map_version + (old in one.map.values()) for one in records.values())


def _needed(
    topology: Topology, old: NodeName, records: Mapping[NodeName, Records]
) -> Iterator[ShardctlError]:
    """Find what still needs the old name: moves, reverses, retired copies."""
    known = ledgers.read(topology, purpose=lock.purpose(COMMAND))
    for entry in known.entries:
        move = entry.move
        if old not in (move.source, move.target):
            continue
        if entry.open:
            yield Refused(
                "move_unfinished",
                f"move {move.id} from node {move.source} to node {move.target} is unfinished",
                hint=f"run `shardctl moves resume {move.id}` or `shardctl moves abort {move.id}`",
            )
        elif entry.reverse is not None and entry.reverse.holds:
            yield Refused(
                "reverse_open",
                f"move {move.id} from node {move.source} to node {move.target} can be reversed",
                hint=f"run `shardctl moves finish {move.id}`, or wait until its time is over",
            )
    if old in records and records[old].retired:
        yield Refused(
            "node_not_empty",
            f"node {old}: {len(records[old].retired):,} retired copies wait there, whose moves "
            "have its old name",
            hint="run `shardctl prune` first",
        )


def _outdated(
    old: NodeName, new: NodeName, records: Mapping[NodeName, Records], version: int
) -> tuple[NodeName, ...]:
    """Name the nodes whose records have the old name or an older map, the renamed one first."""
    found = [
        name
        for name, one in records.items()
        if one.row.node == old or old in one.map.values() or one.row.map_version < version
        if one.map or name == old
    ]
    return tuple(sorted(found, key=lambda name: name not in (old, new)))


def _to_lock(renaming: Renaming, records: Mapping[NodeName, Records]) -> list[NodeName]:
    return [name for name in renaming.topology.nodes if name in records]


def carry_out(renaming: Renaming, progress: Progress) -> None:
    """Rename the node under the locks of all members.

    First the poolers get aliases of both names, so that clients are served whichever name they
    know; the file is behind the databases. What was killed is finished by the same command.
    Raises NodeLocked, plan_outdated, rebalance_open, Problems of poolers, topology_not_written.
    """
    topology, old, new = renaming.topology, renaming.old, renaming.new
    names = [one.name for one in topology.owning()] if renaming.file is None else None
    records = look(topology) if names is None else {}
    to_lock = names if names is not None else _to_lock(renaming, records)
    with (
        rebalances.held(topology, to_lock, command=COMMAND),
        lock.held(topology, to_lock, command=COMMAND) as locks,
    ):
        if renaming.file is not None:
            _rename(renaming, locks, progress)
        if renaming.last is not None:
            _apply(renaming.last, locks, progress)
        for session in locks.values():
            events.record(session, COMMAND, f"node {old} is node {new}")


def _rename(renaming: Renaming, locks: Mapping[NodeName, Connection], progress: Progress) -> None:
    topology, old, new = renaming.topology, renaming.old, renaming.new
    file = renaming.file
    if file is None:  # pragma: no cover  # the caller has asked
        return
    records = look(topology)
    version = _require_ready(topology, file.after, old, new, records)
    if (version, _outdated(old, new, records, version)) != (renaming.version, renaming.members):
        raise Refused(
            "plan_outdated",
            "the fleet changed after the plan was made; nothing was done",
            hint="run the command again to see the new plan",
        )
    known = rebalances.read(topology, purpose=lock.purpose(COMMAND))
    carry.require_without(known, old)
    if renaming.both is not None:
        _apply(renaming.both, locks, progress)
    draining.rename(topology, old, new, known, command=COMMAND)
    for name in renaming.members:
        cluster.rename(locks[name], old, new, version)
    file.write(begun=True)


def _apply(plan: PoolersPlan, locks: Mapping[NodeName, Connection], progress: Progress) -> None:
    if plan.changes() and (errors := pooling.carry_out(plan, locks, progress, command=COMMAND)):
        raise Problems(errors)
