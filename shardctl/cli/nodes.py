"""Nodes that an operator names, and nodes that did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Problems, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.errors import ShardctlError
    from shardctl.topology.model import Node, Topology


def named(topology: Topology, name: str) -> Node:
    """Return the node of this name; raises UsageError."""
    for node in topology.nodes.values():
        if node.name == name:
            return node
    raise UsageError(f"unknown node {name!r}", hint=f"nodes: {', '.join(topology.nodes)}")


def chosen(topology: Topology, names: Sequence[str] | None) -> list[Node]:
    """Return the named nodes in the file's order, or all of them; raises UsageError."""
    wanted = [named(topology, name) for name in names or ()]
    return [node for node in topology.nodes.values() if not wanted or node in wanted]


def require_all(problems: Sequence[ShardctlError], *, answered: bool) -> None:
    """Raise problems after the answers of the other nodes: exit code 3 where nodes were left out.

    Without an answer of any node nothing was done, and the errors keep their own exit codes.
    """
    from shardctl.postgres.connection import NodeUnavailable

    if problems:
        left_out = answered and any(isinstance(one, NodeUnavailable) for one in problems)
        raise Problems(list(problems), exit_code=3 if left_out else None)
