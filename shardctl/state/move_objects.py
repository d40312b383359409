"""What moves make on nodes beside the journal: slots, publications, subscriptions and the like.

Every one of them has its move in its name, or in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardctl.postgres import catalog, queries
from shardctl.state import journal, leash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    "guard",
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


def read(
    session: Connection, *, ended: Iterable[str] = (), copies: Mapping[str, Sequence[str]] = {}
) -> NodeObjects:
    """Read what moves have made on a node.

    Guards of slots are looked for by the ids of moves that have `ended`. `copies` are schemas
    that a move has copied to this node, or was to copy, by the move's id; those that exist here
    are listed, too, where the move has triggers or rows here. Without these they are not its own.
    """
    found = [MoveObject(*row) for row in session.execute(QUERIES["objects"])]
    if slots := {journal.slot(move): move for move in ended}:
        found += [
            MoveObject("guard", f"pid {pid}", slots[slot], f"of slot {slot}")
            for slot, pid in leash.sessions(session, slots)
        ]
    records = session.execute(QUERIES["records"]).fetchall()
    marked = {one.move for one in found if one.kind == "triggers"}
    marked |= {move for move, _, _ in records}
    for move in marked & copies.keys():
        live = catalog.present(session, copies[move])
        found += [MoveObject("schema", name, move) for name in sorted(live)]
    opened = set()
    for move, count, is_open in records:
        found.append(MoveObject("records", "shardctl.stream", move, f"{count} rows"))
        if is_open:
            opened.add(move)
    return NodeObjects(tuple(found), frozenset(opened))
