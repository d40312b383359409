"""Whether a node that is said to be destroyed does not answer any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts import ports
from shardctl.postgres.connection import NodeUnavailable
from shardctl.state import cluster, observer

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology


def require(topology: Topology, node: Node, *, purpose: str) -> None:
    """See that the node is gone; raises node_answers.

    A server at its address that is another cluster's or node's is not this one.
    """

    def is_it(session: Connection, _: Node) -> bool:
        row = cluster.read(session) if cluster.is_present(session) else None
        return row is None or (row.cluster, row.node) == (topology.cluster, node.name)

    asked = observer.ask(topology, is_it, purpose=purpose, nodes=[node])
    error = asked.errors.get(node.name)
    if isinstance(error, NodeUnavailable):
        answers = ports.knock(node.host, node.port) == "open"
    else:
        answers = asked.values.get(node.name, True)
    if answers:
        raise Refused(
            "node_answers",
            f"node {node.name}: a server answers at {node.host}:{node.port}, so it is not lost",
            hint="if it must not be used any more, stop that server first",
        )
