"""The map as the nodes know it, and whether those that can be read prove who owns the shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shardctl.errors import Problems, Refused, ShardctlError, Unfinished, together
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import refusals
from shardctl.provision.observe import Said
from shardctl.state import cluster, identity, ledger, observer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


class NodeLeftOut(Unfinished):
    """A node on which nothing was done, because it or the other node of its move is away."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(
            f"node {node} was skipped: {reason}",
            hint="run the same command again when all nodes are reachable: it does only the rest",
        )
        self.node = node
        self.reason = reason

    def as_json(self) -> dict[str, str]:
        """Give the shape of docs/reference/json.md."""
        return {"node": self.node, "reason": self.reason}


def map_unwritten() -> Refused:
    """Report a fleet on which `init` has not finished, so no node has the map."""
    return Refused(
        "map_unwritten",
        "no node has the map, so the owners of the shards are unknown",
        hint="run `shardctl init`, which also updates the poolers",
    )


def require_beside(
    topology: Topology,
    shards: Collection[int],
    between: Collection[str],
    *,
    purpose: str,
) -> None:
    """Refuse a topology that contradicts a node's map, while a move of `shards` is unfinished.

    Either node of `between` may own these. Nodes that cannot be read are left out. Raises
    OwnershipDiffers, or Problems of several.
    """
    asked = observer.ask(topology, partial(known, topology), purpose=purpose)
    wanted = topology.owners()

    def beside(shard: ShardId, owner: NodeName) -> NodeName:
        return wanted.get(shard, owner) if shard in shards and owner in between else owner

    said = {
        name: replace(one, map={shard: beside(shard, owner) for shard, owner in one.map.items()})
        for name, one in asked.values.items()
    }
    if problems := refusals.ownership(topology, said):
        raise together(problems)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The map's version, and the nodes that could not be read, the rest agreeing on it."""

    version: int
    unread: tuple[NodeUnavailable, ...] = ()

    def require(self, planned: int) -> None:
        """See that the map is still the one of a plan; raises map_changed."""
        if self.version != planned:
            raise Refused(
                "map_changed",
                f"the map changed after the plan was made (version {planned}, now {self.version}); "
                "nothing was done",
                hint="run the command again to see the new plan",
            )

    @property
    def left_out(self) -> tuple[NodeLeftOut, ...]:
        """The nodes that could not be read, as what is left to do."""
        return tuple(NodeLeftOut(one.node, one.reason) for one in self.unread)


def required(topology: Topology, needed: Collection[NodeName]) -> Collection[NodeName]:
    """Name the nodes that a move between the `needed` ones cannot do without."""
    return needed if topology.poolers else [node.name for node in topology.owning()]


def agreed(
    topology: Topology,
    *,
    purpose: str,
    strict: bool = True,
    absent: Sequence[NodeUnavailable] = (),
    needed: Collection[NodeName] | None = None,
) -> Agreed:
    """Read the newest version of the map, and refuse a topology that contradicts a node's.

    `absent` nodes are not tried again. Raises what `proved` and `identity.check` raise.
    """
    away = {one.node for one in absent}
    there = [node for node in topology.nodes.values() if node.name not in away]
    asked = observer.ask(topology, partial(known, topology), purpose=purpose, nodes=there)
    errors = [*absent, *asked.problems]
    return proved(topology, asked.values, errors, strict=strict, needed=needed)


def proved(
    topology: Topology,
    said: Mapping[NodeName, Said],
    errors: Sequence[ShardctlError],
    *,
    strict: bool = True,
    needed: Collection[NodeName] | None = None,
) -> Agreed:
    """Give the newest version of the map, by what nodes said, and the errors of others.

    Every node that owns shards has to be reachable; with `needed`, only these, where there are
    poolers: their files have the version of the newest map, and the caller compares them. Unless
    `strict`, nodes may be away. Then those that can be read have to agree on the whole map, and no
    absent node may be part of a move that they know as open: the aliases of its shards could not
    be proved. Raises these errors, map_unwritten, OwnershipDiffers, move_in_doubt, and what
    `left_out` raises.
    """
    unread = [one for one in errors if isinstance(one, NodeUnavailable)]
    problems = [one for one in errors if not isinstance(one, NodeUnavailable)]
    problems += refusals.ownership(topology, said)
    if needed is not None:
        unread = [one for one in unread if one.node in required(topology, needed)]
    if problems:
        raise together([*unread, *problems])
    left_out(topology, said, unread, strict=strict)
    if doubts := doubted_moves(said, unread):
        raise Problems([*unread, *doubts])
    newest = max((one.version or 0 for one in said.values()), default=0)
    if newest == 0:
        raise map_unwritten()
    return Agreed(newest, tuple(unread))


def known(topology: Topology, session: Connection, node: Node) -> Said:
    """Read what a node knows of the map and of moves; raises what `identity.check` raises."""
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None:
        return Said(None, {}, ())
    copies = ledger.copies(session, topology, node.name, row)
    if identity.is_clone(session, node, row):
        return Said(None, {}, copies, clone=True)
    identity.check(row, topology, node.name)
    return Said(row.map_version, cluster.read_map(session), copies)


def left_out(
    topology: Topology,
    said: Mapping[NodeName, Said],
    unread: Sequence[NodeUnavailable],
    *,
    strict: bool,
) -> tuple[NodeLeftOut, ...]:
    """Name the nodes on which a change does nothing; the rest own what their maps have.

    A shard leaves a node by a move only, which that node's journal has before the first change.
    So a node without an open move owns what its map has, whatever the absent nodes know. Of an
    open move with an absent node, the other node is left out, too. Raises the errors of the
    absent nodes with `strict`, where no map can be read, or no node remains; and beside them
    nodes_do_not_agree, OwnershipDiffers and move_in_doubt.
    """
    if not unread:
        return ()
    if strict or not any(one.version for one in said.values()):
        raise together(unread)
    if doubts := _doubts(topology, said):
        raise Problems([*unread, *doubts])
    away = {one.node for one in unread}
    found = {one.node: NodeLeftOut(one.node, one.reason) for one in unread}
    for move in _open(said, away):
        for node in (move.source, move.target):
            found.setdefault(node, NodeLeftOut(node, _why(move, away)))
    if not any(node.name not in found for node in topology.owning()):
        raise Problems([*unread, *doubted_moves(said, unread)])
    return tuple(one for name, one in found.items() if name in topology.nodes)


def doubted_moves(
    said: Mapping[NodeName, Said], unread: Sequence[NodeUnavailable]
) -> list[ShardctlError]:
    """List the open moves that an absent node may know more about than the readable nodes."""
    away = {one.node for one in unread}
    return [
        Refused(
            "move_in_doubt",
            f"{_why(move, away)}: the owner of its shards is unknown",
            hint="start that node and end the move (`shardctl moves list`), then run the "
            "command again; `init --without-poolers` changes the other nodes now",
        )
        for move in _open(said, away)
    ]


def _open(said: Mapping[NodeName, Said], away: Collection[str]) -> list[Move]:
    entries = ledger.entries(copy for one in said.values() for copy in one.journal)
    found = [entry.move for entry in entries if entry.open]
    return [move for move in found if move.source in away or move.target in away]


def _why(move: Move, away: Collection[str]) -> str:
    missing = next(node for node in (move.source, move.target) if node in away)
    return (
        f"move {move.id} ({move.source} to {move.target}, started by {move.who}) is "
        f"unfinished, and node {missing} cannot be read"
    )


def _doubts(topology: Topology, said: Mapping[NodeName, Said]) -> list[ShardctlError]:
    """List what keeps these nodes from proving who owns the shards."""
    known = {name: one for name, one in said.items() if one.version is not None}
    if stale := refusals.ownership(topology, known):
        return list(stale)
    owners = topology.owners()
    return [
        Refused(
            "nodes_do_not_agree",
            f"node {name} has only a part of the map; shardctl changes nothing while a node cannot "
            "be read",
            hint="start the nodes that cannot be read, then run the command again; `shardctl "
            "verify --check map` shows each node's map",
        )
        for name, one in said.items()
        if one.map.keys() != owners.keys() and (name in known or topology.nodes[name].shards)
    ]
