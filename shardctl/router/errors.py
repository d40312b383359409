"""The router's errors; a server's error for a statement stays psycopg's error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import Misused, ShardctlError, UsageError
from shardctl.libpq import reason_of
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.topology.model import NodeName, ShardId


class ShardMoved(ShardctlError):
    """A shard that left its node while a transaction ran; nothing of it was written.

    Where the move was aborted, source and target are the same.
    """

    def __init__(self, shard: ShardId, source: NodeName, target: NodeName) -> None:
        back = f"shard {shard} was fenced on node {source} by a move, which was undone"
        gone = f"shard {shard} has moved from node {source} to node {target}"
        super().__init__(
            back if source == target else gone,
            hint="run the whole transaction again: it then runs on the node that has the shard",
        )
        self.shard = shard
        self.source = source
        self.target = target


class MapWentBack(ShardctlError):
    """Nodes whose newest map is older than one that was read before."""

    def __init__(self, known: int, found: int) -> None:
        super().__init__(
            f"the newest map on the nodes is version {found}, but version {known} was read before",
            hint="run `shardctl verify`: a node may have been restored from an old backup",
        )
        self.known = known
        self.found = found


class MapUnread(ShardctlError):
    """A map that no node returned; `reasons` has a line for each node that was asked."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(
            "; ".join(["the map cannot be read", *self.reasons]),
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
        other = f"node {node} belongs to cluster {found}, expected {expected}"
        changed = (
            f"node {node} has another number of shards, layout of ids, naming of schemas or rule "
            "of keys than expected"
        )
        super().__init__(
            changed if found == expected else other,
            hint="check the node's host, port and database, and that the topology is that of the "
            "last `shardctl init`",
        )
        self.node = node


class NodeUnknown(ShardctlError):
    """A node in the map for which no address was given."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"no address for node {node}, which is in the map",
            hint="pass nodes={...} with a connection string for each node, or a topology file, or "
            "a pooler's connection string",
        )
        self.node = node


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
        self.reason = reason


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

    `session` is that connection's, as process id and application_name, or None where it is the
    router's own.
    """

    def __init__(self, shard: ShardId, session: tuple[int, str] | None = None) -> None:
        if session is None:
            what = (
                f"the open transaction of shard {shard} has changed tables: the call reads "
                "on other connections, which would not see that"
            )
        else:
            pid, name = session
            what = (
                f"session {pid} ({name or 'without application_name'}) has changed tables of "
                f"shard {shard} in a transaction that is still open: the router uses other "
                "connections, which would not see that"
            )
        super().__init__(
            what,
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
        self.field = field
        self.kind = kind
