"""The context of one running move: the plan, the topology, sessions and their locks."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl import fanout
from shardctl.access.stream_fence import Known
from shardctl.errors import ShardctlError, Unfinished
from shardctl.libpq import reason_of
from shardctl.postgres import connection, hosted
from shardctl.postgres.clone import Clone
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect, is_lost
from shardctl.state import journal, lock
from shardctl.state.progress import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from shardctl.fanout import Progress
    from shardctl.libpq import Sent
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology


class NodeRefused(Unfinished):
    """A statement of a move that a node refused."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(
            f"node {node}: {reason}", hint="fix this, then run `shardctl moves resume`"
        )
        self.node = node


logger = logging.getLogger(__name__)

# The server has to notice a lost client: otherwise it would hold the lock for hours.
_LIVELINESS = """
SELECT set_config('tcp_keepalives_idle', '30', false),
       set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('tcp_user_timeout', '60s', false)
"""


class Use(Enum):
    """The use of a session with a node."""

    work = auto()
    lock = auto()
    """It holds the node's lock, and runs queries on the target that cannot wait for a login."""
    guard = auto()
    """It runs the source's guard."""
    leash = auto()
    """It runs the loop that bounds the WAL of the move's slot."""
    snapshot = auto()
    """It holds the target's snapshot of the cutover, for the comparison."""


@dataclass(slots=True)
class Timeline:
    """The sub-steps and how many milliseconds each took, in order."""

    spans: list[tuple[str, float]] = field(default_factory=list)
    pause_ms: float | None = None
    """From the first PAUSE to the last RESUME."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure the block, whether it succeeds or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spans.append((name, (time.monotonic() - began) * 1000))


@dataclass
class MoveContext:
    """One running move; `topology` is the one before the move."""

    topology: Topology
    plan: MovePlan
    progress: Progress
    purpose: str
    notice: Callable[[str], None]
    """Shows the operator a message while a step runs."""
    timeline: Timeline = field(default_factory=Timeline)
    source_lost: bool = False
    """Whether the operator has declared the source destroyed: it is not contacted any more."""
    target_lost: bool = False
    """Whether the operator has declared the target destroyed: nothing is undone there."""
    file_by_hand: bool = False
    """Whether the move ends though the topology file cannot be written: the operator edits it."""
    snapshot: str | None = None
    """The id of the target's snapshot of the cutover, held by the session `snapshot`."""
    sessions: dict[tuple[NodeName, Use], Connection] = field(default_factory=dict)
    is_near: bool = False
    """Whether the target of a stream was near its source in this process."""
    structure: str | None = None
    """The digest of the structure of what a stream has copied, once it is known."""
    known: Known = field(default_factory=Known)
    """What a stream's shards are known to be before the fence."""
    awaited: dict[int, Sent] = field(default_factory=dict)
    """The messages in which a stream's target waits for the fence's mark, by attempt."""
    exported: str | None = None
    """The snapshot that a stream's target has exported with that mark."""
    decision: dict[str, Any] | None = None
    """What a stream's source has decided: attempt, revision and state, its clock, its sequences."""

    @property
    def source(self) -> Node:
        """The node that the shards leave."""
        return self.topology.nodes[self.plan.source]

    @property
    def target(self) -> Node:
        """The node that gets the shards."""
        return self.topology.nodes[self.plan.target]

    @cached_property
    def clone(self) -> Clone:
        """The move's clone, whether it exists or not: one server in one data directory.

        Raises HostUnreachable.
        """
        target, plan = self.target, self.plan
        if target.data_directory is None:  # pragma: no cover  # preflight has refused it
            raise AssertionError
        return Clone(plan.id, plan.slot, hosted.find(target, target.data_directory))

    @property
    def journal_nodes(self) -> tuple[NodeName, ...]:
        """The nodes that hold the journal past the point of no return."""
        plan = self.plan
        return (plan.target,) if self.source_lost else (plan.target, plan.source)

    def look_for_target(self) -> None:
        """Open a session with the target if its server runs, so that its journal counts."""
        with suppress(NodeUnavailable):
            self.session(self.plan.target)

    def past_cutover(self) -> bool:
        """Return whether the move is past its point of no return."""
        move = self.journal()
        return move is not None and not move.state.undoable

    def open_session(self, node: NodeName, use: Use) -> Connection | None:
        """Return the session with a node for one use, if it is open."""
        found = self.sessions.get((node, use))
        return None if found is None or found.closed else found

    def session(self, node: NodeName, use: Use = Use.work) -> Connection:
        """Return the session with a node for one use, opened on first use.

        In autocommit. That of the lock is opened by `lock` alone; without it this is the other one,
        since no session may pass for one that has the lock. Raises NodeUnavailable.
        """
        found = self.open_session(node, use)
        if found is None and use is Use.lock:
            return self.session(node)
        if found is None:
            found = self.sessions[node, use] = self.beside(node)
        return found

    def beside(self, node: NodeName) -> Connection:
        """Open one more session with a node, in autocommit, which the caller closes.

        Raises NodeUnavailable.
        """
        return connect(
            self.topology.nodes[node],
            self.topology.database,
            purpose=self.purpose,
            autocommit=True,
            # A move must not wait for a synchronous standby that may not answer.
            local_commit=True,
        )

    def kept_progress(
        self, look: Callable[[Progress, Connection], None] = lambda _kept, _session: None
    ) -> AbstractContextManager[Progress]:
        """Give a progress that other terminals see, too, while it is entered: before a cutover.

        `look` gets a session with the source, once a second, in a thread of its own.
        """
        beside = partial(self.beside, self.plan.source)
        return kept(self.progress, beside, self.plan.id, look)

    def forget(self, node: NodeName) -> None:
        """Close all sessions with a node, and release its lock."""
        for key in [key for key in self.sessions if key[0] == node]:
            self.sessions.pop(key).close()

    def holds(self, node: NodeName) -> bool:
        """Return whether this process holds a node's lock."""
        return self.open_session(node, Use.lock) is not None

    def lock(self, node: NodeName) -> None:
        """Take a node's lock for as long as this context lasts; raises NodeLocked."""
        if not self.holds(node):
            session = self.sessions[node, Use.lock] = self.beside(node)
            try:
                with self.on(node):
                    lock.take(session, node)
                    session.execute(_LIVELINESS)
            except ShardctlError:
                session.close()
                raise

    def require_lock(self, node: NodeName) -> None:
        """Check that the lock is still held: a process that lost it must change nothing more."""
        session = self.sessions[node, Use.lock]
        with self.on(node):
            connection.ask_again(lambda: session.execute("SELECT 1"))

    def require_locks(self) -> None:
        """Check that all locks are still held; raises NodeLost."""
        nodes = (self.plan.source, self.plan.target)
        taken = [node for node in nodes if (node, Use.lock) in self.sessions]
        fanout.at_once(*(partial(self.require_lock, node) for node in taken))

    @contextmanager
    def on(self, node: NodeName) -> Iterator[None]:
        """Add the node's name to database errors; raises NodeLost and NodeRefused."""
        try:
            yield
        except psycopg.Error as error:
            kind = NodeLost if is_lost(error) else NodeRefused
            raise kind(node, reason_of(error)) from error

    @contextmanager
    def using(self, node: NodeName, use: Use = Use.work) -> Iterator[Connection]:
        """Give the session with a node for one use, and do what `on` does."""
        with self.on(node):
            yield self.session(node, use)

    def journal(self) -> Move | None:
        """Return the newest copy of the move from the nodes with a session for work."""
        copies = []
        for node in (self.plan.source, self.plan.target):
            session = self.open_session(node, Use.work)
            if session is None:
                continue
            with self.on(node):
                try:
                    # Replay on a standby may cancel the query: it is repeated.
                    copies.append(
                        connection.ask_again(partial(journal.find, session, self.plan.id))
                    )
                except psycopg.errors.UndefinedTable:
                    # Another server in the target's place.
                    logger.debug("move %s: node %s has no journal", self.plan.id, node)
        return journal.newest(copy for copy in copies if copy is not None)

    def close(self) -> None:
        """Close all sessions, and release the locks."""
        for (_, use), session in self.sessions.items():
            if use is Use.lock:
                lock.release(session)
            else:
                session.close()
