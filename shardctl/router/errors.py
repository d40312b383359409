"""The router's errors; a server's error for a statement stays psycopg's error.

Some say that nothing was done: a pooler's refusal, and the fence's.

PgBouncer looks for a server when the first packet of a transaction comes. Where its pool has none
and the last login to the node failed, it disconnects the client at once, with one text that is
written at no other place (`check_fast_fail`, which only `find_server` calls). A client that has a
server never comes there, and keeps its server to the end of the transaction. So a transaction
whose first statement gets this error has reached no server, and nothing of it was done: PgBouncer
might as well have let the client wait, as it does while a login has not failed yet.

A login fails for a moment when a client cancels a statement for which PAUSE waits: PgBouncer
connects to the node to carry the request there, and the pause ends that connection.

A move renames the shard's schema on its source node. A statement there then fails with 42P01
for a table, 3F000 for a schema, with nothing written. A table that the application never created
gives the same codes, so the node is asked whether the schema exists.

A node to which the shard is about to come back has a copy under the schema's own name, closed
until the cutover: without USAGE, a statement there fails with 42501. Roles get that for other
reasons, too, so the node is asked whether this one may use the schema.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from shardctl.errors import Misused, ShardctlError, UsageError
from shardctl.libpq import reason_of
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.topology.model import NodeName, ShardId

FENCED = (errors.UndefinedTable, errors.InvalidSchemaName, errors.InsufficientPrivilege)
"""42P01, 3F000 and 42501."""
FENCED_WITHIN = (
    *FENCED,
    errors.UndefinedFunction,
    errors.UndefinedObject,
    errors.InFailedSqlTransaction,
)
"""And what unqualified names of other things give, once the schema is not on the path any more; and
what comes after one of these that was caught.
"""
_FIRST_PAUSE_S, _PAUSES_GROW, _LAST_PAUSE_S = 0.01, 1.5, 0.2
"""Between questions: a cutover takes a tenth of a second, and a node that is gone much longer."""
_TEXT = "server login has been failing, try again later (server_login_retry)"
"""Up to PgBouncer 1.23."""
_NEWER_TEXT = "server login has been failing, cached error: "
"""From 1.24 on; the node's last error follows, and is cut off at 127 bytes."""


class ShardMoved(ShardctlError):
    """A shard that left its node while a transaction ran; nothing of it was written.

    Where the move was aborted, source and target are the same.
    """

    def __init__(self, shard: ShardId, source: NodeName, target: NodeName) -> None:
        super().__init__(
            f"a move has fenced shard {shard} on node {source}; it is on node {target} now",
            hint="run the whole transaction again: it then runs on the node that has the shard",
        )
        self.shard = shard
        self.source = source
        self.target = target


REPEATABLE = (ShardMoved, errors.SerializationFailure, errors.DeadlockDetected)
"""After which a transaction has written nothing, and may succeed when it runs again."""


class MapWentBack(ShardctlError):
    """Nodes whose newest map is older than one that was read before."""

    def __init__(self, known: int, found: int) -> None:
        super().__init__(
            f"the newest map on the nodes is version {found}, but version {known} was read before",
            hint="run `shardctl verify`: a node may have been restored from an old backup",
        )


class MapUnread(ShardctlError):
    """A map that no node returned; the message has the reason of each node that was asked."""

    def __init__(self, reasons: Iterable[str]) -> None:
        super().__init__(
            "; ".join(["the map cannot be read", *reasons]),
            hint="check that the servers are reachable, that `shardctl init` has finished, and "
            "that the role is listed in `app_roles`",
        )


class NotOpen(UsageError):
    """A database opened by a connection string whose map was never read."""

    def __init__(self) -> None:
        super().__init__(
            "the map has not been read yet", hint="call open() first, or use the object in a `with`"
        )


class Closed(UsageError):
    """A call on a database that was closed."""

    def __init__(self) -> None:
        super().__init__("the database has been closed", hint="create a new ShardedDatabase")


class AnotherLoop(UsageError):
    """A database for asyncio used in a different event loop from the one that opened it."""

    def __init__(self) -> None:
        super().__init__(
            "the database belongs to another event loop",
            hint="open a database in each event loop, and close it in that loop",
        )


class AnotherCluster(ShardctlError):
    """A node of a different cluster, or with a different number of shards or schema naming."""

    def __init__(self, node: NodeName, found: str, expected: str) -> None:
        super().__init__(
            f"node {node} belongs to cluster {found}, expected {expected} with the same number of "
            "shards, layout of ids, naming of schemas and rule of keys",
            hint="check the node's host, port and database, and that the topology is that of the "
            "last `shardctl init`",
        )


class NodeUnknown(ShardctlError):
    """A node in the map for which no address was given."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"no address for node {node}, which is in the map",
            hint="pass nodes={...} with a connection string for each node, or a topology file, or "
            "a pooler's connection string",
        )


class NoNodeAliases(UsageError):
    """A topology without a pooler that has an alias for each node."""

    def __init__(self) -> None:
        super().__init__(
            "no pooler in the topology has an alias for each node",
            hint='set `aliases: [node]` for a pooler, or pass through="nodes"',
        )


class NoConnection(ShardctlError):
    """A node to which no connection could be opened in time."""

    def __init__(self, node: NodeName, reason: str, failed: Exception | None = None) -> None:
        if failed is not None:
            last = reason_of(failed) if isinstance(failed, psycopg.Error) else repr(failed)
            reason = f"{reason}: {last}"
        super().__init__(
            f"node {node}: no connection: {reason}",
            hint="check that the server and its pooler are reachable; if they are, raise the "
            "pool's `max_size`",
        )
        self.node = node


class DeadlinePassed(ShardctlError):
    """Shards that did not answer within the `timeout` of a call."""

    def __init__(self, shards: Iterable[ShardId]) -> None:
        self.shards = frozenset(shards)
        super().__init__(
            f"shards {ranges.of(self.shards)} did not answer in time",
            hint="raise `timeout`, or read fewer rows",
        )


class WritesUnseen(UsageError):
    """A call in the middle of a transaction of another connection that has changed its shard.

    `pid` is that connection's process id at the server, and `name` its application_name.
    """

    def __init__(self, shard: ShardId, pid: int, name: str) -> None:
        super().__init__(
            f"session {pid} ({name or 'without application_name'}) has changed tables of shard "
            f"{shard} in a transaction that is still open: the router uses other connections, "
            "which would not see that",
            hint="commit first, or read that shard by its own connection; tests that roll "
            "everything back can reset a test fleet instead",
        )
        self.shard = shard


def keys_not_ids(rule: str) -> Misused:
    """Report a row that should have its id as its key, in a cluster whose keys are not ids."""
    return Misused(
        "keys_not_ids",
        f"with `shards: {{key: {rule}}}` the id of a new row is not its key",
        hint="call insert() with the row's key; the topology can have `shards: {key: id}` "
        "before the first row",
    )


def id_given(field: object) -> Misused:
    """Report a new row that has an id already, which may be another shard's."""
    return Misused(
        "id_given",
        f"the values have {field!r}, which the new row is to get from its shard",
        hint="leave it out, or call insert() with it as the key",
    )


class NameRefused(UsageError):
    """A value that cannot be the name of a table or a field."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name!r} is not a table or field name",
            hint="pass names as strings, and expressions as psycopg.sql.SQL",
        )


class OrderUnsupported(UsageError):
    """A field whose type does not allow ordering rows, or adding values, of several nodes."""

    def __init__(self, field: str, kind: str) -> None:
        super().__init__(
            f"rows cannot be ordered across nodes by {field}, of type {kind}",
            hint="numbers, times, UUIDs, booleans and bytea can be ordered across nodes; text "
            "cannot, as each server has a collation of its own: sort it in the application",
        )


class Look(Enum):
    """The result of searching for shards that a statement did not find."""

    STANDS = auto()
    """Their schemas exist: something else is missing, or the fence was just removed."""
    SETTLED = auto()
    """They were fenced, and each is on a node now: another one, or the same."""
    AWAY = auto()
    """One is still fenced on every node after the router's patience."""


def is_refusal(error: errors.ProtocolViolation) -> bool:
    """Return whether a pooler ended a connection because it had no server for a new transaction.

    A function of the application's can raise the same text, but not as FATAL.
    """
    reported = error.diag.message_primary or ""
    same = reported == _TEXT or reported.startswith(_NEWER_TEXT)
    return same and error.diag.severity == "FATAL"


def is_of(error: BaseException | None, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether a transaction's error, or a cause of it, is of one of these kinds."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        if isinstance(error, BaseExceptionGroup):  # of a TaskGroup
            return any(is_of(one, kinds) for one in error.exceptions)
        error = error.__cause__  # SQLAlchemy and Django raise errors of their own from psycopg's
    return False


def pauses() -> Iterator[float]:
    """Give how many seconds to wait before each next attempt."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * _PAUSES_GROW, _LAST_PAUSE_S)


def reasons(outcomes: Iterable[Any]) -> list[str]:
    """Give the reason of each node that did not return the map."""
    return [
        reason_of(one)
        if isinstance(one, psycopg.Error)
        else str(one or "`shardctl init` has not finished")
        for one in outcomes
    ]
