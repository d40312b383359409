"""The advisory lock of a command that changes a node: one at a time, and known by name."""

from __future__ import annotations

import getpass
import logging
import os
import random
import secrets
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from shardctl.errors import ShardctlError, together
from shardctl.libpq import Wire
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import observer
from shardctl.state.cluster import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

logger = logging.getLogger(__name__)

_CLASS, CUTOVER, _TURN = 0x5AADC71, 0x5AADC72, 0x5AADC73
"""Classes of advisory locks: that of a node, that of the move which is in its cutover, and that of
the command whose turn it is among those that wait for a node."""
_APPLICATION_NAME_BYTES = 63
_RELEASE_S = 1.0
_POLL_S = 0.2


class Holder(NamedTuple):
    """What a session calls itself, and when it began."""

    name: str
    since: datetime | None


class NodeLocked(ShardctlError):
    """Another command is changing the node."""

    def __init__(self, node: str, holder: str, since: datetime | None) -> None:
        when = f" since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if since else ""
        super().__init__(
            f"node {node} is being changed by {holder}{when}",
            hint="wait until that command ends, with --lock-wait 10m or by hand, or stop it if it "
            "hangs; then run this command again",
        )
        self.node = node
        self.holder = holder


def who() -> str:
    """Name the operator: OS user and host, and the user who called sudo."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "unknown"
    caller = os.environ.get("SUDO_USER")
    return f"{user}@{socket.gethostname()}" + (f" (sudo by {caller})" if caller else "")


def purpose(command: str) -> str:
    """Name the command and its operator, short enough for a session's application_name."""
    text = f"shardctl {command} by {who()}"
    return text.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")


def take(connection: Connection, node: str) -> None:
    """Take the node's lock for the life of this session; raises NodeLocked.

    A second operator sees the session's application_name (see `purpose`).
    """
    if (holder := alone(connection, _CLASS)) is not None:
        raise NodeLocked(node, *holder)


def alone(connection: Connection, of_class: int) -> Holder | None:
    """Take the lock of a class for the life of this session; give who has it instead.

    Everybody who can log in may take any advisory lock. Where a session that does not count has
    this one, another key of the class stands for it, which nobody can foresee. Each session has
    its key before it looks for others: of two, the later one finds the earlier.
    """
    key = 0
    while not queries.one(connection, QUERIES["try_lock"], {"class": of_class, "key": key})[0]:
        if (holder := held_by(connection, of_class)) is not None:
            return holder
        key = secrets.randbelow(2**31)
    if (holder := held_by(connection, of_class)) is not None:
        connection.execute(QUERIES["unlock_class"], {"class": of_class})
    return holder


def held_by(connection: Connection, of_class: int) -> Holder | None:
    """Give the other session that has the lock of a class, and whose role counts.

    Such a role is this one, or may do what shardctl does here.
    """
    row = connection.execute(QUERIES["lock_holder"], {"class": of_class}).fetchone()
    return None if row is None else Holder(*row)


def release(connection: Connection) -> None:
    """Release the node's lock and end its session.

    A server ends a session some time after its client has: the next command could meet the lock
    of one that has ended. A server that hangs is waited for no longer than a second.
    """
    if connection.info.transaction_status is TransactionStatus.IDLE:
        with suppress(psycopg.OperationalError):  # lost at this moment, and the lock with it
            unlocking = Wire(connection.pgconn)
            unlocking.send(b"SELECT pg_advisory_unlock_all()")
            unlocking.answered(_RELEASE_S)
    connection.close()


@contextmanager
def held(
    topology: Topology, nodes: Iterable[NodeName], *, command: str
) -> Iterator[dict[NodeName, Connection]]:
    """Hold the nodes' locks, taken in this order, until the end of a `with`; give the sessions.

    Raises NodeLocked and NodeUnavailable.
    """
    with ExitStack() as stack:
        sessions: dict[NodeName, Connection] = {}
        for name in nodes:
            node = topology.nodes[name]
            session = connect(node, topology.database, purpose=purpose(command), autocommit=True)
            stack.callback(release, session)
            try:
                take(session, name)
            except psycopg.Error as error:
                raise NodeUnavailable(node, error) from error
            sessions[name] = session
        yield sessions


def require_all_free(
    topology: Topology, nodes: Iterable[NodeName], *, command: str, may_be_away: bool = False
) -> None:
    """See before a plan is shown that a command would get these nodes' locks, and take none.

    Raises NodeLocked and, unless a node `may_be_away`, NodeUnavailable, or Problems of several.
    """
    asked = observer.ask(
        topology,
        lambda session, _: held_by(session, _CLASS),
        purpose=purpose(command),
        nodes=[topology.nodes[name] for name in nodes],
    )
    found: list[ShardctlError] = [NodeLocked(n, *one) for n, one in asked.values.items() if one]
    errors = asked.errors.values()
    found += (e for e in errors if not (may_be_away and isinstance(e, NodeUnavailable)))
    if found:
        raise together(found)


def holder(connection: Connection) -> str | None:
    """Name the holder of the node's lock; None: it is free."""
    found = held_by(connection, _CLASS)
    return None if found is None else found.name


def end_cutover(connection: Connection) -> None:
    """Release the lock of cutovers; a session that is lost has lost it, too."""
    if connection.info.transaction_status == TransactionStatus.IDLE:
        with suppress(psycopg.OperationalError):
            connection.execute(QUERIES["unlock_class"], {"class": CUTOVER})


def queue(connection: Connection, node: str, wait_s: float) -> None:
    """Wait until no command changes the node, and have the turn among those that wait for that.

    The turn is this session's until it ends; the lock is not taken: `take` does that. Raises
    NodeLocked when the time is over.
    """
    until = time.monotonic() + wait_s
    for look, of_class in ((alone, _TURN), (held_by, _CLASS)):
        while (holder := look(connection, of_class)) is not None:
            if time.monotonic() >= until:
                raise NodeLocked(node, *(held_by(connection, _CLASS) or holder))
            wait_apart(_POLL_S)


def wait_apart(seconds: float) -> None:
    """Wait for about so long: two that stand in each other's way must not meet for ever."""
    time.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
