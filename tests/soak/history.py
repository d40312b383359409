"""What was done to a fleet and seen of it: values that the checker judges, and the page shows.

Times are seconds of one monotonic clock. A shard, node or pooler is named as in the topology.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Outcome = Literal["acknowledged", "refused", "unknown"]
"""`refused`: nothing was done. `unknown`: the answer was lost, so it was done or not."""
Kind = Literal["write", "change", "read", "other"]
"""`write` inserts a row with a token of its own; `change` gives such a row a higher version."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a client. `begin` is when the statement was sent that commits it."""

    client: str
    kind: Kind
    shard: int
    begin: float
    end: float
    outcome: Outcome
    token: int = 0
    id: int = 0
    version: int = 0
    node: str = ""
    """Which node executed it, as far as that was answered."""
    by: str = ""
    """The pooler, or `direct`, or `router`."""
    asked: tuple[int, ...] = ()
    """The tokens that a read asked for."""
    seen: tuple[tuple[int, int], ...] = ()
    """The tokens that it found, each with its version."""
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a shard's table, and the node that executed its insert."""

    token: int
    id: int
    version: int
    node: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a shard as it was read; `schema` is the shard's own unless it is retired."""

    node: str
    shard: int
    schema: str
    rows: tuple[Row, ...]
    closed: float = math.inf
    """Of a retired one: from when on it was seen that nothing could be written to it."""

    @property
    def retired(self) -> bool:
        return "__" in self.schema


@dataclass(frozen=True, slots=True)
class Era:
    """A node owns a shard, from a moment between `after` and `before` until the next era."""

    shard: int
    node: str
    after: float = -math.inf
    before: float = -math.inf
    stale_until: float = -math.inf
    """Until when the earlier owner may still be read: a move with --read-only."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An alias that was seen paused at each look from `begin` to `end`."""

    pooler: str
    alias: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a fault kept `name` from working: a node, a pooler, or its guards."""

    what: Literal["node", "pooler", "guard"]
    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A `moves resume` or `moves abort` while everything ran and no fault was under way."""

    move: str
    verb: Literal["resume", "abort"]
    at: float
    code: int
    over: bool
    """Whether the move was over afterwards."""


@dataclass(frozen=True, slots=True)
class Left:
    """A thing that was found at the end, and the move that its name has."""

    kind: str
    name: str
    where: str
    move: str | None = None


@dataclass(slots=True)
class History:
    """All of it."""

    ops: list[Op] = field(default_factory=list)
    eras: list[Era] = field(default_factory=list)
    """Of each shard in their order, the first from the beginning."""
    copies: list[Copy] = field(default_factory=list)
    """Live ones as they were at the end, retired ones as they were before they were dropped."""
    maps: dict[str, dict[int, str]] = field(default_factory=dict)
    """What every node said at the end: which node owns which shard."""
    pauses: list[Pause] = field(default_factory=list)
    pause_limit_s: float = math.inf
    outages: list[Outage] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    open_moves: frozenset[str] = frozenset()
    """Moves that were not over at the end."""
    wrong: list[str] = field(default_factory=list)
    """Commands that ended as none may: with a bug, never, or without refusing what they must."""

    def owners(self) -> dict[int, str]:
        """Give the last owner of every shard."""
        return {era.shard: era.node for era in self.eras}


def write(path: Path, entries: Iterable[Any]) -> None:
    """Write values as JSON lines, each with the name of its class."""
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(line(entry) + "\n")


def line(entry: Any) -> str:
    """Compose the JSON line of one value; what a field has by default is left out."""
    given = {
        field.name: value
        for field in dataclasses.fields(entry)
        if (value := getattr(entry, field.name)) != field.default
    }
    return json.dumps({"entry": type(entry).__name__} | _plain(given), separators=(",", ":"))


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in given.items()
    }
