"""Sessions that compare copies: they hold no lock longer than one statement takes.

Sessions that kept catalog locks in their own transactions would wait for each other through a
maintenance command queued between them, and PostgreSQL does not detect that deadlock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.errors import Interrupted
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

QUERIES = queries.load("shardctl.moves", "confirm.sql")

_LOCK_TIMEOUT_MS = 400
"""Less than the default `deadlock_timeout`: PostgreSQL never cancels an operator's command."""
_AGAIN_S = 0.2
_LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_GONE = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.UndefinedObject,
)
"""Errors for a snapshot whose session has ended, or is ending."""


class SnapshotLost(Exception):  # `compare` catches it, no operator sees it
    """The session that held a snapshot has ended."""


@dataclass
class Sessions:
    """Opens and queries sessions with source and target, in the snapshots that are held there."""

    context: MoveContext
    snapshots: Mapping[NodeName, str]
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when nothing more is to be started."""
    _reported: set[NodeName] = field(default_factory=set)

    def open(self, node: NodeName) -> Connection:
        """Open a session; if a lock on a catalog blocks logins, wait until it is released.

        Raises NodeUnavailable, NodeLost, NodeRefused, Interrupted.
        """
        context = self.context
        while True:
            try:
                session = connect(
                    context.topology.nodes[node],
                    context.topology.database,
                    purpose=context.purpose,
                    autocommit=True,
                )
            except NodeUnavailable as error:
                if not isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                    raise
                with context.on(node):  # a lost server raises here
                    context.session(node).execute("SELECT 1")
                self._wait(node, "the server does not complete logins")
                continue
            try:
                with context.on(node):
                    timeout = {"lock_timeout": f"{_LOCK_TIMEOUT_MS}ms"}
                    session.execute(QUERIES["pin"], timeout)
            except BaseException:
                session.close()
                raise
            return session

    def ask(
        self, node: NodeName, session: Connection, query: sql.Composed, *, about: str
    ) -> list[Any]:
        """Return the rows of a query; if locks block it, wait until they are released.

        `about` names the objects that may be locked. Raises SnapshotLost, NodeLost, NodeRefused,
        Interrupted.
        """
        statements = [query]
        if node in self.snapshots:
            begin = QUERIES["begin"].format(snapshot=sql.Literal(self.snapshots[node]))
            statements = [begin, query, sql.SQL("COMMIT").format()]
        message = sql.SQL(";\n").join(statements)
        while True:
            try:
                found = queries.rows_of_all(session, message)
            except _LOCKED:
                self._wait(node, f"{about} is locked")
            except _GONE:
                self._require_snapshot(node, session)
                raise
            else:
                return found[0] if len(statements) == 1 else found[-2]

    def _require_snapshot(self, node: NodeName, session: Connection) -> None:
        """Check that the snapshot still exists; raises SnapshotLost."""
        if node not in self.snapshots:
            return
        begin = QUERIES["begin"].format(snapshot=sql.Literal(self.snapshots[node]))
        try:
            queries.rows_of_all(session, sql.SQL(";\n").join([begin, sql.SQL("COMMIT")]))
        except _GONE as error:
            raise SnapshotLost from error

    def _wait(self, node: NodeName, why: str) -> None:
        if node not in self._reported:
            self._reported.add(node)
            self.context.notice(
                f"node {node}: {why}: the comparison waits, without locks of its own, until that "
                "lock is released (see pg_locks there)"
            )
        if self.stop.wait(_AGAIN_S):
            raise Interrupted(f"node {node}: interrupted: {why}")
