"""Whether a server is the node that the topology takes it for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import NodesRefused, Refused
from shardctl.postgres import queries
from shardctl.state import cluster, journal
from shardctl.state.cluster import FORMAT

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


def node_unfit(node: str, what: str, *, hint: str) -> Refused:
    """Report a server that cannot be a node of this cluster, or is another one's."""
    return NodesRefused("node_unfit", [node], what, hint=hint)


def standby(node: Node) -> Refused:
    """Give the error for a node whose server is in recovery."""
    return node_unfit(
        node.name,
        f"{node.host}:{node.port} is a standby",
        hint="set the node's host and port to those of the primary",
    )


def clone(node: Node, move: Move) -> Refused:
    """Give the error for a node whose server is the clone of an unfinished move."""
    return node_unfit(
        node.name,
        f"{node.host}:{node.port} is the clone of unfinished move {move.id} "
        f"({move.source} to {move.target}, started by {move.who})",
        hint=f"run `shardctl moves show {move.id}` to see its phase; run this command again "
        "when the move has ended",
    )


def cloning(session: Connection, node: Node, state: ClusterRow | None) -> Move | None:
    """Give the unfinished move of which a node's server is the clone: it has another one's records.

    It may be promoted already, and has claimed nothing yet. None where it is no such clone.
    """
    if node.shards or state is None or state.node == node.name:
        return None
    moves = journal.read(session)  # a clone has its source's
    move = next((m for m in moves if m.target == node.name and not m.state.closed), None)
    if move is None:
        return None
    copied = "SELECT pg_is_in_recovery() OR current_setting('primary_slot_name') = %(slot)s"
    (clone,) = queries.one(session, copied, {"slot": journal.slot(move.id)})
    return move if clone else None  # not the source itself


def is_clone(session: Connection, node: Node, state: ClusterRow | None) -> bool:
    """Return whether a node without shards has another one's records, and so none of its own.

    A move leaves a standby there, or a server that it has promoted and that has claimed nothing,
    until it is ended.
    """
    (in_recovery,) = queries.one(session, "SELECT pg_is_in_recovery()")
    return not node.shards and (in_recovery or cloning(session, node, state) is not None)


def system(session: Connection) -> str:
    """Read the server's system identifier, which its standbys share."""
    (found,) = queries.one(session, "SELECT system_identifier::text FROM pg_control_system()")
    return str(found)


def check_moved(
    session: Connection, topology: Topology, node: Node, *, expected: str, clone_slot: str
) -> None:
    """See that the server at a node's new address is that node, as after a failover.

    `expected` is the system identifier that the node had, and `clone_slot` the slot that the clone
    of a move follows until it has claimed. Raises format_too_new or node_unfit.
    """
    row = cluster.read(session) if cluster.is_present(session) else None
    asked = "SELECT pg_is_in_recovery(), current_setting('primary_slot_name')"
    recovering, slot = queries.one(session, asked)
    if row is not None:
        check(row, topology, node.name)
        if recovering:
            raise standby(node)
    found = system(session)
    if row is None or found != expected or slot == clone_slot:
        raise node_unfit(
            node.name,
            f"{node.host}:{node.port} (system identifier {found}) is not the server of the node "
            f"(system identifier {expected}), or it is the clone of the move",
            hint="correct the node's host and port in the topology",
        )


def check(state: ClusterRow, topology: Topology, node: NodeName) -> None:
    """Refuse a server that is another node, another cluster's, or of another make.

    Raises format_too_new or node_unfit.
    """
    if state.format > FORMAT:
        raise Refused(
            "format_too_new",
            f"node {node}: schema shardctl has format {state.format}; this shardctl "
            f"supports formats up to {FORMAT}",
            hint="use a newer shardctl; this one does not write to that node",
        )
    if (state.cluster, state.node) != (topology.cluster, node):
        # A wrong `cluster:` is the same of all nodes, and so reported once.
        other = "" if state.node == node else f"node {state.node} "
        raise node_unfit(
            node,
            f"the server is {other}of cluster {state.cluster}, and the topology of "
            f"{topology.cluster}",
            hint="correct the node's host and port in the topology, or its `cluster:`",
        )
    if differences := state.differences(topology):
        raise node_unfit(
            node,
            "; ".join(
                f"{what} is {here} on the server and {wanted} in the topology"
                for what, here, wanted in differences
            ),
            hint="restore the topology: these values are fixed for the life of the cluster; of one "
            "without rows, drop the databases and run `shardctl init`",
        )
