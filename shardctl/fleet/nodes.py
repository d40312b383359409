"""A node's entry in the topology file: a new server is checked and added, an empty node removed."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl import inputs, libpq
from shardctl.errors import Incomplete, Misused, Problems, Refused, ShardctlError, together
from shardctl.meter import listed
from shardctl.moves import file
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import fleet, maps, observe, refusals
from shardctl.state import events, ledger, lock, observer
from shardctl.topology import edit, loader, marks, names, ranges
from shardctl.topology.model import Node, NodeName, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from shardctl.fanout import Progress
    from shardctl.provision.fleet import FleetPlan
    from shardctl.provision.observe import Said

ADD, REMOVE = "node add", "node remove"
"""The commands, as locks and events name them."""


@dataclass(frozen=True, slots=True)
class Change:
    """A node that the file gets or loses, and what `init` does by the file as it is then."""

    command: str
    node: Node
    before: Topology
    text: str
    edited: str
    init: FleetPlan
    notes: tuple[str, ...]
    gone: bool = False
    """Whether the server of the node that is removed is permanently lost."""

    @property
    def again(self) -> str:
        """The command that adds the node as the file has or had it."""
        text = self.edited if self.command == ADD else self.text
        data = marks.read(text.lstrip("\ufeff")).data["nodes"][self.node.name]
        more = ", ".join(
            f"{key}: {edit.scalar(value) if isinstance(value, str) else json.dumps(value)}"
            for key, value in data.items()
            if key not in ("host", "port", "shards")
        )
        where = ("--host", self.node.host, "--port", str(self.node.port))
        options = (*where, "--with", more) if more else where
        return shlex.join(["shardctl", *ADD.split(), self.node.name, *options])

    @property
    def locked(self) -> list[NodeName]:
        """The nodes whose locks it takes while it writes the file."""
        away = {one.node for one in self.init.left_out}
        owning = [node.name for node in self.before.owning() if node.name not in away]
        return owning if self.command == ADD or self.gone else [*owning, self.node.name]

    def put(self) -> str:
        """Return the new text for the file that is as it was; raises topology_changed."""
        if _text(self.before.path) != self.text:
            raise file.changed(self.before.path)
        return self.edited

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "cluster": self.before.cluster,
            "file": str(self.before.path),
            "node": self.node.name,
            "command": self.command,
            "changes": [change.as_json() for change in self.init.changes()],
            "notes": list(self.notes),
            "add": self.again,
        }


def add(topology: Topology, name: str, value: str) -> Change:
    """Check a new server, and plan to add it without shards; changes nothing.

    `value` is its mapping in the file, as YAML in braces. Raises node_known, node_not_empty,
    ScalarNotEditable and TopologyInvalid, and what `observe` and `plan_init` raise.
    """
    if name in topology.nodes:
        raise Misused(
            "node_known",
            f"{topology.path} has a node {name} already",
            hint="run `shardctl init`, which makes it a member of the cluster",
        )
    text, edited, after = _edited(topology, name, value)
    node = after.nodes[NodeName(name)]
    seen = observe.observe(after, node, command=ADD)
    if held := _of_shards(after, seen.schemas):
        # By an old file, which lacks a node, its live shards would look like copies to drop.
        maps.agreed(topology, purpose=lock.purpose(ADD), strict=False)
        raise Refused(
            "node_not_empty",
            f"node {name}: {node.host}:{node.port} has schemas of shards: {listed(held)}",
            hint="give an empty server, or drop these schemas if no application uses them",
        )
    init = _init(after, node, strict=False)
    return _checked(Change(ADD, node, topology, text, edited, init, tuple(init.notes)))


def remove(topology: Topology, node: Node, *, gone: bool) -> Change:
    """Prove that a node is empty, and plan to remove it; changes nothing.

    With `gone` its server is permanently lost, and the maps of all other nodes are the proof.
    Raises what `_prove` and `plan_init` raise, and ScalarNotEditable.
    """
    proof = _prove(topology, node, gone=gone)
    text, edited, after = _edited(topology, node.name, None)
    init = _init(after, node, strict=True)
    notes = (*init.notes, proof)
    return _checked(Change(REMOVE, node, topology, text, edited, init, notes, gone))


def carry_out(change: Change, progress: Progress, notice: Callable[[str], None]) -> None:
    """Write the file under the locks of all nodes, then let `init` do the rest.

    Raises NodeLocked, topology_changed, FileRefused and what `_prove` raises with nothing done;
    then Problems with exit code 3.
    """
    node, path = change.node, change.before.path
    with lock.held(change.before, change.locked, command=change.command) as sessions:
        if change.command == REMOVE:
            _prove(change.before, node, gone=change.gone)
        file.put(path, change.put)
        for name, session in sessions.items():
            if name != node.name:
                events.record(session, change.command, f"{node.name} at {node.host}:{node.port}")
    try:
        fleet.carry_out(change.init, fleet.Options(), progress, notice)
    except ShardctlError as error:
        unfinished = Incomplete(
            "init_unfinished",
            f"{path} is changed, and the fleet does not follow it so far",
            hint="run `shardctl init`, which does the rest",
        )
        raise Problems([*error.parts(), unfinished]) from error


def _edited(topology: Topology, name: str, value: str | None) -> tuple[str, str, Topology]:
    """Return the file's text without and with the change, and the topology with it.

    Raises ScalarNotEditable where more than this node would change.
    """
    text = _text(topology.path)
    edited = edit.with_entry(text, "nodes", name, value)
    after = loader.parse(edited.encode(), topology.path)
    others = {key: node for key, node in after.nodes.items() if key != name}
    kept = {key: node for key, node in topology.nodes.items() if key != name}
    if (name in after.nodes) == (value is None) or replace(after, nodes=others) != replace(
        topology, nodes=kept
    ):
        raise edit.ScalarNotEditable(("nodes", name), "more than this node would change")
    return text, edited, after


def _text(path: Path) -> str:
    return inputs.read(path, loader.MOST_BYTES).decode()


def _init(after: Topology, node: Node, *, strict: bool) -> FleetPlan:
    """Plan what `init` does for this node and the poolers; raises init_pending for more."""
    init = fleet.plan_init(after, strict=strict)
    if other := [one for one in init.changes() if one.node not in (None, node.name)]:
        raise fleet.init_pending(other)
    return init


def _checked(change: Change) -> Change:
    """See before a plan is shown that it could be carried out; raises NodeLocked and others."""
    file.placement(change.before, change.before.owners())  # whether the file can be written
    lock.require_all_free(change.before, change.locked, command=change.command)
    fleet.require_free(change.init)
    return change


def _of_shards(topology: Topology, schemas: Iterable[str]) -> list[str]:
    """List the schemas that are shards, or retired copies of shards."""
    live = {topology.schema(shard) for shard in topology.owners()}
    return sorted(name for name in schemas if name in live or names.is_retired(name))


def _prove(topology: Topology, node: Node, *, gone: bool) -> str:
    """Prove that a node owns nothing, and return the proof as a sentence.

    Raises node_not_empty, retired_left, node_answers, node_unproved, OwnershipDiffers,
    move_unfinished, reverse_open, and the errors of other nodes that cannot be read.
    """
    name = node.name
    if node.shards:
        raise Refused(
            "node_not_empty",
            f"node {name} owns shards {ranges.of(node.shards)}",
            hint=f"run `shardctl node drain {name}` first; if its server is permanently lost, "
            "promote its standby or restore its backup, and correct its host and port in "
            f"{topology.path}",
        )
    others = [other for other in topology.nodes.values() if other.name != name]
    known, purpose = partial(maps.known, topology), lock.purpose(REMOVE)
    said = {**observer.ask(topology, known, purpose=purpose, nodes=others).every()}
    version = max((one.version or 0 for one in said.values()), default=0)
    if not version:
        raise maps.map_unwritten()
    which = f"map version {version} of {', '.join(said)}"
    held: list[str] = []
    unproved: str | None = None
    try:
        own = observe.observe(topology, node, command=REMOVE)
    except NodeUnavailable as error:
        if libpq.answered(error.__cause__):
            raise
        unproved = error.message
    else:
        if own.state is None:  # another server, or the node's own, set up again
            unproved = f"node {name}: the server at {node.host}:{node.port} has no map"
        said[name], held = own.said(), _of_shards(topology, own.schemas)
    if gone and unproved is None:
        raise Refused(
            "node_answers", f"node {name} is not lost: it answers", hint="leave out --gone"
        )
    if unproved is not None and not gone:
        raise Refused(
            "node_unproved",
            f"{unproved}; its own map and schemas have to prove that it is empty",
            hint="start its server; if that is permanently lost, "
            f"`shardctl {REMOVE} {name} --gone` takes the maps of all other nodes as proof",
        )
    proof = (
        f"{which}, and its own map and schemas prove that node {name} is empty"
        if unproved is None
        else f"{unproved}; {which} proves that it owns no shards"
    )
    # By a file that the maps contradict, a live shard would look like a copy to drop.
    problems: list[ShardctlError] = [*refusals.ownership(topology, said)]
    if problems := problems or [*_left(node, held, said.values())]:
        raise together(problems)
    return proof


def _left(node: Node, held: list[str], said: Iterable[Said]) -> Iterator[ShardctlError]:
    """List schemas of shards on a node, and moves that are unfinished or can be reversed."""
    retired = [name for name in held if names.is_retired(name)]
    if retired:
        yield Refused(
            "retired_left",
            f"node {node.name} has retired copies of shards: {listed(retired)}",
            hint="run `shardctl prune`, which drops them after proof that their rows are on "
            "another node; `shardctl prune --dry-run` shows why it keeps one",
        )
    if live := [name for name in held if name not in retired]:
        yield Refused(
            "node_not_empty",
            f"node {node.name} has schemas of shards that other nodes own: {listed(live)}",
            hint="drop these schemas if no application uses them",
        )
    for entry in ledger.entries(copy for one in said for copy in one.journal):
        move, reverse = entry.move, entry.reverse
        if node.name not in (move.source, move.target):
            continue
        if entry.open:
            yield ledger.in_the_way(entry)
        elif reverse is not None and (reverse.holds or reverse.can):
            yield Refused(
                "reverse_open",
                f"move {move.id} of shards {ranges.of(move.shards)} ({move.source} to "
                f"{move.target}) can be reversed",
                hint=f"run `shardctl moves finish {move.id}`",
            )
