"""Whether a server is the node that the topology takes it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.state.format import FORMAT, FormatTooNew

if TYPE_CHECKING:
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


class NodeUnfit(ShardctlError):
    """A server that cannot be a node of this cluster, or is another one's."""

    def __init__(self, node: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}: {what}", hint=hint)
        self.node = node


def standby(node: Node) -> NodeUnfit:
    """Give the error for a node whose server is in recovery."""
    return NodeUnfit(
        node.name,
        f"{node.host}:{node.port} is a standby",
        hint="the topology names primaries: give the primary's host and port",
    )


def clone(node: Node, move: Move) -> NodeUnfit:
    """Give the error for a node whose server is the clone of a move that has not ended."""
    return NodeUnfit(
        node.name,
        f"{node.host}:{node.port} is the clone of move {move.id} (from {move.source} to "
        f"{move.target}), which has not ended",
        hint=f"`shardctl moves show {move.id}` tells how far it is; when it has ended, run the "
        "command again",
    )


def check(state: ClusterRow, topology: Topology, node: NodeName) -> None:
    """Refuse a server that is another node, another cluster's, or of another make.

    Raises FormatTooNew or NodeUnfit.
    """
    if state.format > FORMAT:
        raise FormatTooNew(node, state.format)
    if (state.cluster, state.node) != (topology.cluster, node):
        raise NodeUnfit(
            node,
            f"the server there is node {state.node} of cluster {state.cluster}",
            hint="check host and port in the topology: the likely cause is a wrong host",
        )
    differences = state.differences(topology)
    if differences:
        raise NodeUnfit(
            node,
            "; ".join(
                f"{what} is {here} there and {wanted} in the topology"
                for what, here, wanted in differences
            ),
            hint="these are fixed for the life of the cluster: put them back into the topology",
        )
