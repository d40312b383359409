"""What clients did, when, and what came of it: a line of JSON for each operation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal["insert", "update", "read"]
Outcome = Literal["acknowledged", "refused", "unknown"]
"""`refused`: the server answered with an error, or was never reached; nothing was written."""
Route = Literal["alias", "direct", "router", "copy"]
"""By a pooler's alias of the shard, straight to a node, by the router, or to any node's copy."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a client on one row; times are `time.time()`, in seconds."""

    client: str
    route: Route
    kind: Kind
    shard: int
    row: str
    """Its name, which no other row of the fleet has."""
    begin: float
    end: float
    outcome: Outcome
    version: int = 0
    """Written, or read; 0 is a row that a read did not find."""
    node: str | None = None
    """Who acknowledged it, as that node said itself."""
    id: int | None = None
    serial: int | None = None
    error: str | None = None
    """The SQLSTATE, or the kind of a lost connection."""

    def line(self) -> str:
        """Write it as a line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Self:
        """Read a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Row:
    """A row that a node has at the end."""

    node: str
    shard: int
    row: str
    version: int
    id: int
    serial: int
    live: bool = True
    """Whether its schema has the shard's name, or a retired one."""
    twins: tuple[int, ...] = ()
    """All its versions in the three other tables that every operation writes, too."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Aliases of a pooler that were paused, from the first look that found that to the last."""

    pooler: str
    begin: float
    end: float


def read(directory: Path) -> Iterator[Operation]:
    """Read what all clients have written; a line that its client did not finish is none."""
    for path in sorted(directory.glob("*.history")):
        for line in path.read_text().splitlines():
            if line.endswith("}"):
                yield Operation.of(line)
