"""`node add`: check a new server, write its line into the topology, make it a running member."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.errors import Misused, Refused, ShardctlError, together
from shardctl.hosts import ports
from shardctl.nodes import line, newcomer
from shardctl.provision import fleet, maps, topology_file
from shardctl.provision.plan import Change
from shardctl.provision.scope import Scope
from shardctl.state import events, lock
from shardctl.topology.edit_entries import add_entry
from shardctl.topology.model import NodeName
from shardctl.topology.problems import TopologyInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.fanout import Progress
    from shardctl.nodes.line import Values
    from shardctl.postgres.connection import Connection
    from shardctl.provision.fleet import FleetPlan
    from shardctl.topology.model import Node, Topology

COMMAND = "node add"


@dataclass(frozen=True, slots=True)
class Addition:
    """What adds a node; `file` is None where the topology has its line already."""

    name: NodeName
    file: topology_file.Change | None
    fleet: FleetPlan
    unfit: tuple[ShardctlError, ...] = ()
    """Why moves from or to it would be refused, where the operator accepts that."""
    for_clone: bool = False

    @property
    def node(self) -> Node:
        """The node as the topology will have it."""
        return self.fleet.topology.nodes[self.name]

    def changes(self) -> list[Change]:
        """List what it changes, in the order of execution."""
        name = str(self.fleet.topology.path)
        written = [Change("write", "topology", self.name, name=name)] if self.file else []
        return [*written, *self.fleet.changes()]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without the state."""
        node = self.node
        return {
            "cluster": self.fleet.topology.cluster,
            "node": {"name": node.name, "host": node.host, "port": node.port},
            "for_clone": self.for_clone,
            "changes": [change.as_json() for change in self.changes()],
            "accepted": [error.error_json() for error in self.unfit],
        }


def plan(
    topology: Topology,
    name: str,
    values: Values,
    *,
    for_clone: bool = False,
    accept_unfit: bool = False,
) -> Addition:
    """Check the server and all nodes, and plan; changes nothing.

    `for_clone` is for a server that does not run: a move will clone onto it. `accept_unfit` adds
    a server from or to which moves would be refused. Raises node_exists, node_invalid,
    server_runs, node_not_empty, what `newcomer.look`, `maps.version`, `plan_init` and
    `topology_file.plan` raise, or Problems of several.
    """
    file = _change(topology, name, values)
    after = file.after if file else topology
    node = after.nodes[NodeName(name)]
    purpose = lock.purpose(COMMAND)
    maps.version(topology, purpose=purpose)
    unfit: list[ShardctlError] = []
    if for_clone:
        _require_silent(node)
    else:
        unfit = _check(topology, node, purpose)
        if unfit and not accept_unfit:
            raise together(unfit)
    only = frozenset({node.name})
    scope = Scope(nodes=only, members=frozenset() if for_clone else only, everywhere=True)
    found = fleet.plan_init(after, command=COMMAND, scope=scope)
    fleet.require_free(found)
    return Addition(node.name, file, found, tuple(unfit), for_clone)


def _change(topology: Topology, name: str, values: Values) -> topology_file.Change | None:
    """Plan the change of the file; None where it has this line, as after a run that was killed."""
    if name in topology.nodes:
        old = line.written(topology, name)
        if old.get("shards") != line.NONE or (keys := line.differing(old, values)):
            why = "with shards" if old.get("shards") != line.NONE else f"with another {keys[0]}"
            raise Misused(
                "node_exists",
                f"{topology.path} has a node {name} already, {why}",
                hint="choose another name, or change its line in the file by hand",
            )
        return None
    edit = partial(_with_line, path=line.path(name), values=values)
    try:
        return topology_file.plan(topology, edit)
    except TopologyInvalid as error:
        # The places are those of a file that was not written.
        raise Misused(
            "node_invalid",
            "; ".join(f"{one.path}: {one.message}" for one in error.problems),
            hint="correct the name or the options of `node add`: nothing was changed",
        ) from error


def _with_line(text: str, *, path: tuple[str, ...], values: Values) -> str:
    return add_entry(text, path, values)


def _require_silent(node: Node) -> None:
    """See that no server runs where one is to be cloned to; raises server_runs."""
    if ports.knock(node.host, node.port) == "open":
        raise Refused(
            "server_runs",
            f"node {node.name}: a program listens at {node.host}:{node.port}",
            hint="leave out --for-clone to add a server that runs, or stop it",
        )


def _check(topology: Topology, node: Node, purpose: str) -> list[ShardctlError]:
    """Look at the server; give why moves would be refused, raise why it cannot be a node."""
    found = newcomer.look(topology, node, purpose=purpose)
    if found.as_peer.server.in_recovery:
        return []  # the observation of `init` says what it is, and refuses it
    if found.database:
        back = newcomer.logins_to(topology, node, purpose=purpose)
        found = replace(found, back=back)
    if refused := list(newcomer.refusals(node.name, found)):
        raise together(refused)
    return list(
        newcomer.unfit(topology, node.name, found, newcomer.peers(topology, purpose=purpose))
    )


def carry_out(addition: Addition, progress: Progress, notice: Callable[[str], None]) -> None:
    """Add the node, under the locks of all nodes that own shards; raises what `init` raises.

    The file is first: when this is killed, the same command finds its line there and goes on.
    """
    plan = addition.fleet

    def begin(locks: Mapping[NodeName, Connection]) -> None:
        if addition.file is not None:
            addition.file.write()
        for node in plan.topology.owning():
            events.record(locks[node.name], COMMAND, f"node {addition.name}: begun")

    fleet.carry_out(plan, fleet.Options(), progress, notice, begin=begin)
