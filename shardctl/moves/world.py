"""What the steps of one move share: the plan, both topologies, the sessions that hold locks."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, Unfinished
from shardctl.libpq import reason_of
from shardctl.moves import admission
from shardctl.moves import plan as planning
from shardctl.moves.distance import Distance
from shardctl.postgres import hosted, replay
from shardctl.postgres.clone import Clone
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect, is_lost
from shardctl.state import journal, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.fanout import Progress
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


class NoDataDirectory(ShardctlError):
    """A target that has no place for a clone."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"node {node} has no data_directory, so nothing can be cloned onto it",
            hint="give it one in the topology",
        )


class NodeRefused(Unfinished):
    """A statement of a move that a node refused."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"node {node}: {reason}", hint="mend that, then `shardctl moves resume`")
        self.node = node


logger = logging.getLogger(__name__)

# The server, too, has to notice when nobody is there any more: its lock would stay for hours.
_LIVELINESS = """
SELECT set_config('tcp_keepalives_idle', '30', false),
       set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('tcp_user_timeout', '60s', false)
"""


@dataclass(slots=True)
class Timeline:
    """What was done when: names and milliseconds, in order."""

    spans: list[tuple[str, float]] = field(default_factory=list)
    pause_ms: float | None = None
    """From the first PAUSE to the last RESUME."""
    refused_ms: float | None = None
    """How long writes were refused, where they were not let wait."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what happens within, whether it succeeds or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spans.append((name, (time.monotonic() - began) * 1000))


@dataclass
class World:
    """One move at work; `topology` is that of before the move, `after` of when it is done."""

    topology: Topology
    plan: MovePlan
    progress: Progress
    purpose: str
    notice: Callable[[str], None] = logger.warning
    """Tells the operator something while a step is at work."""
    sessions: dict[str, Connection] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    distance: Distance = field(default_factory=Distance)
    """How far all are who are asked in the cutover, once that was measured."""
    source_lost: bool = False
    """Whether an operator has said that the source is gone for good: it is not asked any more."""
    file_by_hand: bool = False
    """Whether the move ends though the topology file cannot be written: an operator does that."""
    snapshot: str | None = None
    """What the target had at the cutover, held by its session `snapshot`."""

    @property
    def after(self) -> Topology:
        """The topology as it is when the move is done."""
        return planning.after(self.topology, self.plan)

    @property
    def source(self) -> Node:
        """The node from which shards go."""
        return self.topology.nodes[self.plan.source]

    @property
    def target(self) -> Node:
        """The node to which they go."""
        return self.topology.nodes[self.plan.target]

    @property
    def keepers(self) -> tuple[NodeName, ...]:
        """The nodes whose journals are to say, past the point of no return, how far it is."""
        plan = self.plan
        return (plan.target,) if self.source_lost else (plan.target, plan.source)

    @cached_property
    def clone(self) -> Clone:
        """What the move makes on the target's host; raises HostUnreachable and others."""
        target = self.target
        if target.data_directory is None:
            raise NoDataDirectory(target.name)
        server = hosted.find(target, target.data_directory)
        return Clone(self.plan.id, self.plan.slot, server)

    def addresses(self) -> list[str]:
        """List the addresses from which shardctl and its guards log in to the target.

        The one under which the source knows this machine is among them.
        """
        with self.on(self.plan.source):
            return admission.addresses(self.topology, self.target, self.session(self.plan.source))

    def look_for_target(self) -> None:
        """Open a session with the target if its clone runs already, so that its journal counts."""
        try:
            self.session(self.plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", self.plan.id, error.message)

    def past_cutover(self) -> bool:
        """Tell whether the point of no return is behind."""
        move = self.journal()
        return move is not None and not move.state.undoable

    def holds(self, node: NodeName) -> bool:
        """Tell whether this process holds a node's lock."""
        session = self.sessions.get(f"{node}/lock")
        return session is not None and not session.closed

    def session(self, node: NodeName, use: str = "work") -> Connection:
        """Give the session with a node that serves one use, opened when it is first wanted.

        In autocommit. Raises NodeUnavailable.
        """
        key = f"{node}/{use}"
        found = self.sessions.get(key)
        if found is None or found.closed:
            found = self.sessions[key] = connect(
                self.topology.nodes[node],
                self.topology.database,
                purpose=self.purpose,
                autocommit=True,
                # Nothing of a move is to wait for a standby that may not answer.
                local_commit=True,
            )
        return found

    def forget(self, node: NodeName) -> None:
        """End all sessions with a node, and with them its lock."""
        for key in [key for key in self.sessions if key.startswith(f"{node}/")]:
            self.sessions.pop(key).close()

    def lock(self, node: NodeName) -> None:
        """Take a node's lock for as long as this world lasts; raises NodeLocked."""
        key = f"{node}/lock"
        if key not in self.sessions or self.sessions[key].closed:
            session = self.session(node, "lock")
            try:
                with self.on(node):
                    lock.take(session, node)
                    session.execute(_LIVELINESS)
            except ShardctlError:
                session.close()
                raise

    def require_lock(self, node: NodeName) -> None:
        """See that the lock is still held: whoever has lost it must do nothing more."""
        session = self.sessions[f"{node}/lock"]
        with self.on(node):
            replay.again(lambda: session.execute("SELECT 1"))

    def require_locks(self) -> None:
        """See that all locks are held that were taken; raises NodeLost."""
        nodes = (self.plan.source, self.plan.target)
        taken = [node for node in nodes if f"{node}/lock" in self.sessions]
        fanout.at_once(*(partial(self.require_lock, node) for node in taken))

    @contextmanager
    def on(self, node: NodeName) -> Iterator[None]:
        """Give the database's errors the node's name; raises NodeLost and NodeRefused."""
        try:
            yield
        except psycopg.Error as error:
            kind = NodeLost if is_lost(error) else NodeRefused
            raise kind(node, reason_of(error)) from error

    def journal(self) -> Move | None:
        """Read the move from wherever it can be read; the newest copy counts."""
        copies = []
        for node in (self.plan.source, self.plan.target):
            key = f"{node}/work"
            if key in self.sessions and not self.sessions[key].closed:
                with self.on(node):
                    try:
                        copies.append(self._copy(self.sessions[key]))
                    except psycopg.errors.UndefinedTable:
                        # An empty server in the target's place, which `clear` will move aside.
                        logger.debug("move %s: node %s has no journal", self.plan.id, node)
        return journal.newest(copy for copy in copies if copy is not None)

    def _copy(self, session: Connection) -> Move | None:
        """Read one node's record of the move; that of a standby as often as replay cancels it."""
        return replay.again(lambda: journal.find(session, self.plan.id))

    def close(self) -> None:
        """End all sessions, and with them the locks."""
        for key, session in self.sessions.items():
            if key.endswith("/lock"):
                lock.let_go(session)
            else:
                session.close()
