"""Where a statement is to run: every shard on its owner by the databases' map, or every node."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shardctl.errors import Refused, ShardctlError, together
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import maps, refusals
from shardctl.state import ledger, observer
from shardctl.state.identity import node_unfit
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardctl.provision.observe import Said
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class Place:
    """One shard on its owner; or one node, where there are neither shard nor schema."""

    node: NodeName
    shard: ShardId | None = None
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes: what they know of the map and of moves, or why they could not be asked."""

    topology: Topology
    said: Mapping[NodeName, Said]
    unasked: Mapping[NodeName, ShardctlError]

    def owners(self) -> dict[ShardId, NodeName]:
        """Give every shard's owner by the newest map; raises map_unwritten, owners_disputed."""
        newest = max((one.version or 0 for one in self.said.values()), default=0)
        if newest == 0:
            raise maps.map_unwritten()
        first, *others = [one.map for one in self.said.values() if one.version == newest]
        disputed = [
            s for s in self.topology.owners() if any(o.get(s) != first.get(s) for o in others)
        ]
        if disputed:
            raise Refused(
                "owners_disputed",
                f"the nodes' maps disagree about the owner of shards {ranges.of(disputed)}",
                hint="run `shardctl verify --check map` to see each node's map",
            )
        return dict(first)

    def open_moves(self) -> list[Entry]:
        """List the moves that have not ended."""
        copies = (copy for one in self.said.values() for copy in one.journal)
        return [one for one in ledger.entries(copies) if one.open]

    def require_settled(self) -> None:
        """See that no move is open, and that map and topology agree.

        Raises move_unfinished, OwnershipDiffers, or Problems of several.
        """
        problems: list[ShardctlError] = [ledger.in_the_way(one) for one in self.open_moves()]
        if problems := problems or list(refusals.ownership(self.topology, self.said)):
            raise together(problems)


@dataclass(frozen=True, slots=True)
class Places:
    """Where to run, and where not: shards (or one node) each with why; `notes` are for people."""

    chosen: tuple[Place, ...]
    left_out: tuple[tuple[Place, ShardctlError], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> list[NodeName]:
        """List the nodes with places, each once."""
        return list(dict.fromkeys(place.node for place in self.chosen))

    def by_node(self) -> dict[NodeName, list[Place]]:
        """Group the places."""
        found: dict[NodeName, list[Place]] = defaultdict(list)
        for place in self.chosen:
            found[place.node].append(place)
        return dict(found)


def look(topology: Topology, *, purpose: str) -> Fleet:
    """Ask all nodes; raises the errors of all when none could be asked."""
    asked = observer.ask(topology, partial(maps.known, topology), purpose=purpose)
    if not asked.values:
        raise together(list(asked.errors.values()))
    return Fleet(topology, asked.values, asked.errors)


def of_shards(fleet: Fleet, shards: Iterable[ShardId]) -> Places:
    """Choose shards, each on its owner; raises what `Fleet.owners` raises."""
    topology, owners = fleet.topology, fleet.owners()
    chosen: list[Place] = []
    left_out: list[tuple[Place, ShardctlError]] = []
    for shard in sorted(set(shards)):
        owner = owners[shard]
        place = Place(owner, shard, topology.schema(shard))
        if owner not in topology.nodes:
            unknown = Refused(
                "owner_unknown",
                f"the map gives them to node {owner}, which is not in the topology",
                hint="use the newest topology file",
            )
            left_out.append((place, unknown))
        elif owner in fleet.unasked:
            left_out.append((place, fleet.unasked[owner]))
        else:
            chosen.append(place)
    return Places(tuple(chosen), tuple(left_out))


def of_nodes(fleet: Fleet, *, ours: bool) -> Places:
    """Choose all reachable nodes; with `ours` only those that have schema shardctl.

    A node without shards need not be reachable, and a move's clone is no node yet.
    """
    chosen: list[Place] = []
    left_out: list[tuple[Place, ShardctlError]] = []
    notes: list[str] = []
    for name, node in fleet.topology.nodes.items():
        error, said = fleet.unasked.get(name), fleet.said.get(name)
        if isinstance(error, NodeUnavailable) and not node.shards:
            notes.append(f"spare node {name} is down")
        elif error is not None:
            left_out.append((Place(name), error))
        elif said is not None and said.clone:
            notes.append(f"node {name} is the clone of a running move; skipped")
        elif ours and said is not None and said.version is None:
            lacking = node_unfit(name, "schema shardctl is missing", hint="run `shardctl init`")
            if node.shards:
                left_out.append((Place(name), lacking))
            else:
                notes.append(f"spare node {name} has no schema shardctl; skipped")
        else:
            chosen.append(Place(name))
    return Places(tuple(chosen), tuple(left_out), tuple(notes))
