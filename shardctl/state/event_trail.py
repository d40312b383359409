"""The audit trail of all nodes, merged by time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.postgres import queries
from shardctl.state import cluster, identity, observer
from shardctl.state.ledger import written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.state", "event_trail.sql")

ALL = 1_000_000_000
"""More events than a node has."""

_LATE = 100
"""Numbers are drawn before commits: an event may appear after some with higher numbers."""


class Event(NamedTuple):
    """A change of one node, as that node has recorded it.

    `files` are the migrations of a run of `init` or `migrate` that ends with this event.
    """

    at: datetime
    node: NodeName
    id: int
    who: str
    command: str
    result: str
    files: tuple[str, ...]

    @property
    def alike(self) -> tuple[object, ...]:
        """What a clone's copy of the event has in common with it."""
        return self.id, self.at, self.who, self.command, self.result

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "time": written(self.at),
            "node": self.node,
            "by": self.who,
            "command": self.command,
            "files": list(self.files),
            "result": self.result,
        }


class Clone(NamedTuple):
    """A server that is, or began as, a clone of another one."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Trail:
    """Events by time, and the problems of nodes that could not be asked."""

    events: tuple[Event, ...]
    problems: tuple[ShardctlError, ...] = ()


@dataclass(slots=True)
class Follower:
    """Reads events that it has not given before, from nodes of one topology."""

    topology: Topology
    purpose: str
    nodes: Sequence[Node]
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _last: dict[NodeName, int] = field(default_factory=dict)
    _start: datetime | None = None
    answered: bool = False
    """Whether a node has answered."""

    def read(self, *, since: datetime | None = None, limit: int = ALL) -> Trail:
        """Give the newest `limit` events since then that it has not given or left out before.

        Of a node that answers for the first time later than the other nodes, those since the first
        read.
        """
        self._start, start = self._start or since or datetime.now(UTC), self._start
        known = frozenset(self._last)
        asked = observer.ask(
            self.topology,
            lambda session, node: self._look(session, node, since, limit),
            purpose=self.purpose,
            nodes=self.nodes,
        )
        self.answered = self.answered or bool(asked.values)
        found = [event for events, _ in asked.values.values() for event in events]
        new = [one for one in found if one.alike not in self._seen]
        for one in new:
            self._seen.add(one.alike)
            self._last[one.node] = max(one.id, self._last.get(one.node, 0))
        clones = [clone for _, clones in asked.values.values() for clone in clones]
        shown = [
            one
            for one in merged(new, clones)
            if since is None or one.at >= since
            if start is None or one.node in known or one.at >= start
        ]
        return Trail(tuple(shown[-limit:]), tuple(asked.problems))

    def _look(
        self, session: Connection, node: Node, since: datetime | None, limit: int
    ) -> tuple[list[Event], list[Clone]]:
        row = cluster.read(session) if cluster.is_present(session) else None
        if row is None or cluster.is_clone_of_a_move(session, node):
            return [], []
        identity.check(row, self.topology, node.name)
        after = self._last.get(node.name, 0) - _LATE
        given = {"since": since, "after": after, "limit": max(limit, _LATE), "late": _LATE}
        events = [
            Event(at, node.name, number, who, command, result, tuple(files))
            for number, at, who, command, result, files in session.execute(QUERIES["events"], given)
        ]
        (readable,) = queries.one(session, QUERIES["rights"])
        clones = session.execute(QUERIES["clones"]).fetchall() if readable else []
        return events, [Clone(*one) for one in clones]


def merged(events: Iterable[Event], clones: Collection[Clone]) -> list[Event]:
    """Sort events by time, and leave out those that a node has only as the clone of another."""
    held: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for one in events:
        held[one.alike].append(one)
    found = []
    for alike in held.values():
        nodes = {one.node for one in alike}
        copies = {clone.target for clone in clones if clone.source in nodes}
        found += [one for one in alike if one.node not in copies] or alike[:1]
    return sorted(found)
