"""The audit trail: who changed what on a node, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shardctl.state import cluster, ledger, observer
from shardctl.state.cluster import QUERIES
from shardctl.state.lock import who

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

_Row = tuple[datetime, int, str, str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """One change of a node, as its table has it; `at` is by that node's clock.

    `nodes` have the same row: a clone has those of its source.
    """

    at: datetime
    id: int
    who: str
    command: str
    result: str
    nodes: tuple[NodeName, ...]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "time": ledger.written(self.at),
            "nodes": list(self.nodes),
            "by": self.who,
            "command": self.command,
            "result": self.result,
        }


def record(connection: Connection, command: str, result: str) -> None:
    """Write an event in the session's transaction (or at once, in autocommit)."""
    connection.execute(
        QUERIES["record_event"], {"who": who(), "command": command, "result": result}
    )


def read(
    topology: Topology, *, since: datetime, purpose: str, nodes: Iterable[Node] | None = None
) -> tuple[list[Event], list[ShardctlError]]:
    """Merge the events of some nodes, by default of all, by time; and why some do not answer.

    Nodes without shards that cannot be logged in to are left out.
    """

    def question(session: Connection, _node: Node) -> list[_Row]:
        if not cluster.is_present(session):
            return []
        return session.execute(QUERIES["events"], {"since": since}).fetchall()

    asked = observer.ask(topology, question, purpose=purpose, nodes=nodes)
    found: dict[_Row, list[NodeName]] = {}
    for node, rows in asked.values.items():
        for row in rows:
            found.setdefault(row, []).append(node)
    merged = (Event(*row, tuple(of)) for row, of in found.items())
    return sorted(merged, key=lambda one: (one.at, one.nodes, one.id)), asked.problems
