"""Whether a server is the node that the topology takes it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.state.format import FORMAT

if TYPE_CHECKING:
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


def node_unfit(node: str, what: str, *, hint: str) -> Refused:
    """Report a server that cannot be a node of this cluster, or is another one's."""
    return Refused("node_unfit", f"node {node}: {what}", hint=hint)


def standby(node: Node) -> Refused:
    """Give the error for a node whose server is in recovery."""
    return node_unfit(
        node.name,
        f"{node.host}:{node.port} is a standby",
        hint="the topology names primaries: give the primary's host and port",
    )


def clone(node: Node, move: Move) -> Refused:
    """Give the error for a node whose server is the clone of a move that has not ended."""
    return node_unfit(
        node.name,
        f"{node.host}:{node.port} is the clone of move {move.id} (from {move.source} to "
        f"{move.target}), which has not ended",
        hint=f"`shardctl moves show {move.id}` tells how far it is; when it has ended, run the "
        "command again",
    )


def check(state: ClusterRow, topology: Topology, node: NodeName) -> None:
    """Refuse a server that is another node, another cluster's, or of another make.

    Raises format_too_new or node_unfit.
    """
    if state.format > FORMAT:
        raise Refused(
            "format_too_new",
            f"node {node}: schema shardctl has format {state.format}, this shardctl knows up to "
            f"{FORMAT}",
            hint="use the newer shardctl; this one does not write to that node",
        )
    if (state.cluster, state.node) != (topology.cluster, node):
        raise node_unfit(
            node,
            f"the server there is node {state.node} of cluster {state.cluster}",
            hint="check host and port in the topology: the likely cause is a wrong host",
        )
    differences = state.differences(topology)
    if differences:
        raise node_unfit(
            node,
            "; ".join(
                f"{what} is {here} there and {wanted} in the topology"
                for what, here, wanted in differences
            ),
            hint="these are fixed for the life of the cluster: put them back into the topology",
        )
