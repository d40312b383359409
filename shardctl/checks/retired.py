"""Retired schemas of a node: which of them a move in its journal explains, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import status_look
from shardctl.postgres import queries
from shardctl.state.journal import MoveState
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.checks.check import Basics
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import ShardId, Topology

_RETIRED = "__retired_"


@dataclass(frozen=True, slots=True)
class Retired:
    """One retired schema, seen at a moment of its server's clock.

    `size_bytes` has indexes and TOAST in it; None where a lock forbade to measure.
    """

    schema: str
    size_bytes: int | None
    seen: datetime

    @property
    def move(self) -> str:
        """The move that retired it, by its name."""
        return self.schema[-8:]


def schemas(basics: Basics, *, known: bool) -> list[str]:
    """Name the retired schemas that a move of the node's journal explains, or the rest.

    A move that was aborted has taken back what it had retired, so it explains none.
    """
    moves = {copy.move.id for copy in basics.journal if copy.move.state is not MoveState.aborted}
    found = (name for name in basics.schemas if _RETIRED in name)
    return sorted(name for name in found if (name[-8:] in moves) == known)


def measure(connection: Connection, wanted: Sequence[str]) -> tuple[Retired, ...]:
    """Measure retired schemas; there are few, or none, and then nothing is asked."""
    if not wanted:
        return ()
    found = status_look.read_schemas(connection, list(wanted))
    (now,) = queries.one(connection, "SELECT clock_timestamp()")
    return tuple(Retired(name, found[name][0], now) for name in sorted(wanted) if name in found)


def shards(topology: Topology, move: str, found: Sequence[Retired]) -> tuple[ShardId, ...]:
    """Give the shards whose retired copies of one move these are."""
    there = {one.schema for one in found}
    return tuple(
        shard
        for shard in sorted(topology.owners())
        if names.retired(topology.schema(shard), move) in there
    )
