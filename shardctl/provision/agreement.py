"""Whether the nodes that can be read prove enough to go on without those that cannot; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Problems, Refused, ShardctlError, Unfinished, together
from shardctl.provision import refusals
from shardctl.state import ledger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.postgres.connection import NodeUnavailable
    from shardctl.provision.observe import Said
    from shardctl.state.journal import Move
    from shardctl.topology.model import NodeName, Topology


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


def nodes_do_not_agree(what: str) -> Refused:
    """Report nodes that can be read and do not prove who owns the shards."""
    return Refused(
        "nodes_do_not_agree",
        f"{what}; shardctl changes nothing while a node cannot be read",
        hint="start the nodes that cannot be read, then run the command again; `shardctl "
        "verify --check map` shows each node's map",
    )


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
    doubts: list[ShardctlError] = []
    versions = {one.version for one in known.values()}
    if 0 in versions and len(versions) > 1:  # an init was broken off; an older map is only older
        listed = ", ".join(f"{name} has {one.version}" for name, one in known.items())
        what = f"the nodes have different versions of the map ({listed})"
        doubts.append(nodes_do_not_agree(what))
    owners = topology.owners()
    for name, one in said.items():
        if one.map.keys() != owners.keys() and (name in known or topology.nodes[name].shards):
            doubts.append(nodes_do_not_agree(f"node {name} has only a part of the map"))
    return doubts
