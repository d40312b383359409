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
class NodeObjects:
    """What moves have made on one node."""

    objects: Sequence[MoveObject] = ()
    open: frozenset[str] = field(default_factory=frozenset)
    """Moves whose copies on this node accept writes."""


def read(session: Connection) -> NodeObjects:
    """Read what moves have made on a node; which schemas are copies, only their journals know."""
    found = [MoveObject(*row) for row in session.execute(QUERIES["objects"])]
    records = session.execute(QUERIES["records"]).fetchall()
    found += [
        MoveObject("records", "shardctl.stream", move, f"{count} rows")
        for move, count, _ in records
    ]
    return NodeObjects(tuple(found), frozenset(move for move, _, is_open in records if is_open))
