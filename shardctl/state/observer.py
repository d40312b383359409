"""One question to every node: what the nodes answer, and why some could not be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.fanout import Value
from shardctl.postgres.connection import AnswersNothing, NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology


@dataclass(frozen=True, slots=True)
class Asked(Generic[Value]):
    """What nodes answered, and the errors of those that could not be asked, in their order.

    `away` are nodes among the latter that own no shards and cannot be logged in to: they wait
    to be cloned onto.
    """

    values: dict[NodeName, Value]
    errors: dict[NodeName, ShardctlError]
    away: frozenset[NodeName]

    @property
    def problems(self) -> list[ShardctlError]:
        """List the errors of the nodes that have to be reachable."""
        return [error for name, error in self.errors.items() if name not in self.away]

    @property
    def unread(self) -> dict[NodeName, str]:
        """Say why nodes that have to be reachable could not be asked."""
        return {
            name: getattr(error, "reason", getattr(error, "what", error.message))
            for name, error in self.errors.items()
            if name not in self.away
        }

    def every(self) -> dict[NodeName, Value]:
        """Give the values, or raise the problem that there is, or Problems of several."""
        if self.problems:
            raise together(self.problems)
        return self.values


def ask(
    topology: Topology,
    question: Callable[[Connection, Node], Value],
    *,
    purpose: str,
    nodes: Iterable[Node] | None = None,
    width: int = fanout.WIDTH,
) -> Asked[Value]:
    """Ask nodes, `width` at a time, each over a session of its own in autocommit; None asks all.

    An error of the database is one of a node that cannot be asked. What is neither that nor a
    ShardctlError is a bug and raised.
    """

    def one(node: Node) -> Value:
        with connect(
            node, topology.database, purpose=purpose, autocommit=True, observing=True
        ) as session:
            return question(session, node)

    values: dict[NodeName, Value] = {}
    errors: dict[NodeName, ShardctlError] = {}
    away: set[NodeName] = set()
    chosen = topology.nodes.values() if nodes is None else nodes
    for outcome in fanout.run(chosen, one, width=width):
        node, error = outcome.item, outcome.error
        if isinstance(error, AnswersNothing | NodeUnavailable) and not node.shards:
            away.add(node.name)
        if isinstance(error, psycopg.Error):
            errors[node.name] = NodeUnavailable(node, error)
        elif isinstance(error, ShardctlError):
            errors[node.name] = error
        else:
            values[node.name] = outcome.result()
    return Asked(values, errors, frozenset(away))
