"""What the router refuses or fails at; what a server says of a statement stays psycopg's error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.topology.model import NodeName, ShardId


class ShardMoved(ShardctlError):
    """A shard that left its node while a transaction ran; nothing of it was written.

    Where the move was called off, source and target are the same.
    """

    def __init__(self, shard: ShardId, source: NodeName, target: NodeName) -> None:
        back = f"shard {shard} was away from node {source}, and is back"
        gone = f"shard {shard} has moved from node {source} to node {target}"
        super().__init__(
            back if source == target else gone,
            hint="run the whole transaction again: it goes to where the shard is now",
        )
        self.shard = shard
        self.source = source
        self.target = target


class MapWentBack(ShardctlError):
    """Nodes whose newest map is older than one that was known before."""

    def __init__(self, known: int, found: int) -> None:
        super().__init__(
            f"the map has version {found}, and {known} was known before",
            hint="a node may have been restored from a backup: see `shardctl verify`",
        )
        self.known = known
        self.found = found


class MapUnread(ShardctlError):
    """A map that no node has told; `reasons` has a line for each that was asked."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(
            "; ".join(["the map cannot be read", *self.reasons]),
            hint="see that the servers are there, that `shardctl init` has run, and that the role "
            "is one of `app_roles`",
        )


class NotOpen(UsageError):
    """A database that was opened by a connection string, and whose map was never read."""

    def __init__(self) -> None:
        super().__init__(
            "the map has not been read yet", hint="call open() first, or use the object in a `with`"
        )


class Closed(UsageError):
    """A database that was closed, and is asked for something."""

    def __init__(self) -> None:
        super().__init__("the database has been closed", hint="open another")


class AnotherLoop(UsageError):
    """A database for asyncio that is used in another event loop than the one that opened it."""

    def __init__(self) -> None:
        super().__init__(
            "the database belongs to another event loop",
            hint="open one in each event loop, and close it there",
        )


class AnotherCluster(ShardctlError):
    """A node of another cluster, or of one made otherwise, than the others."""

    def __init__(self, node: NodeName, found: str, expected: str) -> None:
        super().__init__(
            f"node {node} belongs to cluster {found}, and not to {expected}, or was made otherwise",
            hint="check host, port and database: the likely cause is a wrong host",
        )
        self.node = node


class NodeUnknown(ShardctlError):
    """A node that the map names and that nobody has said how to reach."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"the map names node {node}, and how to reach it is not known",
            hint="give nodes={...} with a connection string for each node, or a topology file, or "
            "a pooler's connection string",
        )
        self.node = node


class NoNodeAliases(UsageError):
    """A topology without a pooler that offers aliases of nodes."""

    def __init__(self) -> None:
        super().__init__(
            "no pooler of the topology offers an alias a node",
            hint='let one have `aliases: [node]`, or give through="nodes"',
        )


class NoConnection(ShardctlError):
    """A node with which no connection was to be had in time."""

    def __init__(self, node: NodeName, reason: str) -> None:
        super().__init__(
            f"node {node}: no connection: {reason}",
            hint="see that the server and its pooler are there, and whether the pool is too small",
        )
        self.node = node
        self.reason = reason


class DeadlinePassed(ShardctlError):
    """Shards that had not answered when the time was up."""

    def __init__(self, shards: Iterable[ShardId]) -> None:
        self.shards = frozenset(shards)
        super().__init__(
            f"shards {ranges.of(self.shards)} did not answer in time",
            hint="give more time, ask for less, or take what there is with partial=True",
        )


class IdsUnlike(UsageError):
    """Ids of another type than a column has, each of which would seem to be missing."""

    def __init__(self, field: str, given: str, kind: str) -> None:
        super().__init__(
            f"{field} is of type {kind}, and what it gives back is not equal to ids that are "
            f"asked for, of Python's type {given}",
            hint="give ids as psycopg reads them: int for bigint, uuid.UUID for uuid, str for text",
        )
        self.field = field
        self.given = given
        self.kind = kind


class NothingReturned(ShardctlError):
    """A row that is not there after it was inserted."""

    def __init__(self, table: str, shard: ShardId) -> None:
        super().__init__(
            f"the row for {table} in shard {shard} was not inserted, and the server tells no error",
            hint="a trigger or a rule left it out, or put it elsewhere: where that is meant, give "
            "returning=None",
        )
        self.table = table
        self.shard = shard


class NameRefused(UsageError):
    """A value that cannot be the name of a table or a field."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name!r} is no name of a table or field",
            hint="names are strings; for an expression give a psycopg.sql.SQL",
        )


class OrderUnsupported(UsageError):
    """A field by whose type rows of several nodes cannot be put into one order."""

    def __init__(self, field: str, kind: str) -> None:
        super().__init__(
            f"rows cannot be ordered across nodes by {field}, of type {kind}",
            hint="text is ordered by each server's own rules: give Order(field, by_bytes=True); "
            "numbers, times, UUIDs, booleans and bytea need nothing",
        )
        self.field = field
        self.kind = kind
