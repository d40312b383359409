"""What moves make on nodes beside the journal: slots, publications, subscriptions and the like.

Every one of them has its move in its name, or in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.state", "move_objects.sql")

Kind = Literal[
    "subscription",
    "slot",
    "publication",
    "triggers",
    "schema",
    "function",
    "role",
    "records",
]
_WITH_STREAMS = 150_000


@dataclass(frozen=True, slots=True)
class MoveObject:
    """One thing that a move has made on a node; `name` is of a schema for triggers and schemas."""

    kind: Kind
    name: str
    move: str
    detail: str = ""
    held_bytes: int | None = None
    """WAL that a slot holds back."""

    @property
    def shared(self) -> bool:
        """Whether it is no database's: a cluster in another one on the server may have made it."""
        physical = self.kind == "slot" and self.detail.startswith("physical")
        return physical or self.kind == "role"


@dataclass(frozen=True, slots=True)
class Stream:
    """What a stream's slot or subscription does; `works` when something uses or runs it."""

    kind: Literal["slot", "subscription"]
    name: str
    works: bool
    status: str
    """A slot's `wal_status`; whether a subscription is enabled."""
    lag_bytes: int | None
    errors: int

    @property
    def move(self) -> str:
        """The move that made it."""
        return move_of(self.name)


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """What moves have made on one node."""

    objects: Sequence[MoveObject] = ()
    open: frozenset[str] = field(default_factory=frozenset)
    """Moves whose copies on this node accept writes."""


def move_of(name: str) -> str:
    """Give the move that an object's name has.

    >>> move_of("shardctl_5f3a9c1e"), move_of("shardctl_5f3a9c1e_back")
    ('5f3a9c1e', '5f3a9c1e')
    """
    return name[len("shardctl_") :][:8]


def read(session: Connection) -> NodeObjects:
    """Read what moves have made on a node; which schemas are copies, only their journals know."""
    found = [MoveObject(*row) for row in session.execute(QUERIES["objects"])]
    records = session.execute(QUERIES["records"]).fetchall()
    found += [
        MoveObject("records", "shardctl.stream", move, f"{count} rows")
        for move, count, _ in records
    ]
    return NodeObjects(tuple(found), frozenset(move for move, _, is_open in records if is_open))


def streams(session: Connection) -> tuple[Stream, ...]:
    """Read what the streams of moves do on a node."""
    if session.info.server_version < _WITH_STREAMS:
        return ()
    return tuple(Stream(*row) for row in session.execute(QUERIES["stream"]))
