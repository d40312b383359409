"""The context of one move at work: the plan, both topologies, sessions and the locks they hold."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, Unfinished
from shardctl.libpq import reason_of
from shardctl.moves import plan as planning
from shardctl.postgres import replay
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect, is_lost
from shardctl.state import journal, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.fanout import Progress
    from shardctl.moves.method import Method
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


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


Own = TypeVar("Own")


class Use(Enum):
    """What a session with a node is for."""

    work = auto()
    lock = auto()
    """It holds the node's lock; on the target, it also asks what must not wait for a login."""
    guard = auto()
    """The source's guard runs in it."""
    leash = auto()
    """What bounds the WAL of the move's slot runs in it."""
    snapshot = auto()
    """It keeps what the target had at the cutover, for the comparison."""


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
class MoveContext:
    """One move at work; `topology` is that of before the move, `after` of when it is done."""

    topology: Topology
    plan: MovePlan
    method: Method
    progress: Progress
    purpose: str
    notice: Callable[[str], None] = logger.warning
    """Shows the operator something while a step is at work."""
    timeline: Timeline = field(default_factory=Timeline)
    source_lost: bool = False
    """Whether an operator has said that the source is destroyed: it is not asked any more."""
    file_by_hand: bool = False
    """Whether the move ends though the topology file cannot be written: an operator does that."""
    snapshot: str | None = None
    """What the target had at the cutover, held by its session `snapshot`."""
    sessions: dict[tuple[NodeName, Use], Connection] = field(default_factory=dict)
    _own: dict[type, object] = field(default_factory=dict)

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
        """The nodes that hold the journal past the point of no return."""
        plan = self.plan
        return (plan.target,) if self.source_lost else (plan.target, plan.source)

    def own(self, kind: type[Own], make: Callable[[], Own]) -> Own:
        """Give what only the move's method knows of it, made when it is first wanted."""
        if kind not in self._own:
            self._own[kind] = make()
        return cast("Own", self._own[kind])

    def look_for_target(self) -> None:
        """Open a session with the target if its server runs, so that its journal counts."""
        try:
            self.session(self.plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", self.plan.id, error.message)

    def past_cutover(self) -> bool:
        """Tell whether the point of no return is behind."""
        move = self.journal()
        return move is not None and not move.state.undoable

    def open_session(self, node: NodeName, use: Use) -> Connection | None:
        """Give the session with a node that serves one use, if it is open."""
        found = self.sessions.get((node, use))
        return None if found is None or found.closed else found

    def session(self, node: NodeName, use: Use = Use.work) -> Connection:
        """Give the session with a node that serves one use, opened when it is first wanted.

        In autocommit. Raises NodeUnavailable.
        """
        found = self.open_session(node, use)
        if found is None:
            found = self.sessions[node, use] = connect(
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
        for key in [key for key in self.sessions if key[0] == node]:
            self.sessions.pop(key).close()

    def holds(self, node: NodeName) -> bool:
        """Tell whether this process holds a node's lock."""
        return self.open_session(node, Use.lock) is not None

    def lock(self, node: NodeName) -> None:
        """Take a node's lock for as long as this context lasts; raises NodeLocked."""
        if not self.holds(node):
            session = self.session(node, Use.lock)
            try:
                with self.on(node):
                    lock.take(session, node)
                    session.execute(_LIVELINESS)
            except ShardctlError:
                session.close()
                raise

    def require_lock(self, node: NodeName) -> None:
        """See that the lock is still held: a process that has lost it must do nothing more."""
        session = self.sessions[node, Use.lock]
        with self.on(node):
            replay.again(lambda: session.execute("SELECT 1"))

    def require_locks(self) -> None:
        """See that all locks are held that were taken; raises NodeLost."""
        nodes = (self.plan.source, self.plan.target)
        taken = [node for node in nodes if (node, Use.lock) in self.sessions]
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
        """Read the move from every node that has a session for work; the newest copy counts."""
        copies = []
        for node in (self.plan.source, self.plan.target):
            session = self.open_session(node, Use.work)
            if session is None:
                continue
            with self.on(node):
                try:
                    # A standby is asked as often as replay cancels it.
                    copies.append(replay.again(partial(journal.find, session, self.plan.id)))
                except psycopg.errors.UndefinedTable:
                    # An empty server in the target's place, which `clear` will move aside.
                    logger.debug("move %s: node %s has no journal", self.plan.id, node)
        return journal.newest(copy for copy in copies if copy is not None)

    def close(self) -> None:
        """End all sessions, and with them the locks."""
        for (_, use), session in self.sessions.items():
            if use is Use.lock:
                lock.let_go(session)
            else:
                session.close()
