"""The advisory lock of a command that changes a node: one at a time, and known by name."""

from __future__ import annotations

import getpass
import select
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from shardctl.errors import Refused, ShardctlError, together
from shardctl.postgres.connection import connect, unavailable
from shardctl.state import observer
from shardctl.state.cluster import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

_CLASS = 0x5AADC71
_APPLICATION_NAME_BYTES = 63
_RELEASE_MS = 1000


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
    """Name the operator: OS user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def purpose(command: str) -> str:
    """Name the command and its operator, short enough for a session's application_name."""
    text = f"shardctl {command} by {who()}"
    return text.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")


def take(connection: Connection, node: str) -> None:
    """Take the node's lock for the life of this session; raises NodeLocked.

    A second operator sees the session's application_name (see `purpose`).
    """
    row = connection.execute(QUERIES["try_lock"], {"class": _CLASS}).fetchone()
    if row is not None and row[0]:
        return
    require_free(connection, node)
    # It was released in between; then it is reported as it was found, and the hint still holds.
    raise NodeLocked(node, "another command", None)


def hold(topology: Topology, node: Node, *, command: str) -> Connection:
    """Open the session that holds the node's lock, for `release`.

    Raises NodeLocked and NodeUnavailable.
    """
    connection = connect(node, topology.database, purpose=purpose(command), autocommit=True)
    try:
        take(connection, node.name)
    except psycopg.Error as error:
        connection.close()
        raise unavailable(node, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def release(connection: Connection) -> None:
    """Release the node's lock and end its session.

    A server ends a session some time after its client has: the next command could meet the lock
    of one that has ended. A server that hangs is waited for no longer than a second.
    """
    if connection.info.transaction_status is TransactionStatus.IDLE:
        with suppress(psycopg.OperationalError):  # lost at this moment, and the lock with it
            connection.pgconn.send_query(b"SELECT pg_advisory_unlock_all()")
            connection.pgconn.flush()
            answer = select.poll()
            answer.register(connection.fileno(), select.POLLIN)
            answer.poll(_RELEASE_MS)
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
            sessions[name] = hold(topology, topology.nodes[name], command=command)
            stack.callback(release, sessions[name])
        yield sessions


def require_free(connection: Connection, node: str) -> None:
    """See that no session holds the node's lock, and take none; raises NodeLocked, lock_taken."""
    holding = connection.execute(QUERIES["lock_holder"], {"class": _CLASS}).fetchone()
    if holding is None:
        return
    name, since, pid, ours, role = holding
    if not ours:
        raise Refused(
            "lock_taken",
            f"node {node}: role {role} (pid {pid}) holds the advisory lock of shardctl's commands",
            hint=f"run pg_terminate_backend({pid}), and let only roles connect that have to: "
            f"REVOKE CONNECT ON DATABASE {connection.info.dbname} FROM PUBLIC",
        )
    raise NodeLocked(node, name, since)


def require_all_free(topology: Topology, nodes: Iterable[NodeName], *, command: str) -> None:
    """See before a plan is shown that a command would get these nodes' locks, and take none.

    Raises NodeLocked and NodeUnavailable, or Problems of several.
    """
    asked = observer.ask(
        topology,
        lambda session, node: require_free(session, node.name),
        purpose=purpose(command),
        nodes=[topology.nodes[name] for name in nodes],
    )
    if asked.errors:
        raise together(list(asked.errors.values()))


def holder(connection: Connection) -> str | None:
    """Name the holder of the node's lock; None: it is free."""
    row = connection.execute(QUERIES["lock_holder"], {"class": _CLASS}).fetchone()
    if row is None:
        return None
    name, _, pid, ours, role = row
    return str(name) if ours else f"role {role} (pid {pid})"


def queue(connection: Connection, node: str, wait_s: float) -> None:
    """Wait until no command changes the node, and have the turn among those that wait for that.

    The turn is this session's until it ends; the lock is not kept: `take` takes it. Raises
    NodeLocked when the time is over.
    """
    until = time.monotonic() + wait_s
    for query in ("wait_turn", "wait_lock"):
        left_ms = max(1, round((until - time.monotonic()) * 1000))
        connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{left_ms}ms"])
        try:
            connection.execute(QUERIES[query], {"class": _CLASS})
        except psycopg.errors.LockNotAvailable:
            require_free(connection, node)
            raise NodeLocked(
                node, "another shardctl command that waits for the lock", None
            ) from None
