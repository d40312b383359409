"""What an application waits for when it starts: the router's import against psycopg's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.bench.fleet import ROOT
from tests.bench.measure import Row, alternate, compare, milliseconds

if TYPE_CHECKING:
    from tests.bench.measure import Scale, Side

_TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def router(scale: Scale) -> list[Row]:
    """Import a face of the router in a new process, against psycopg alone in another.

    Fair: only the import counts, not Python's own start; both are compiled beforehand.
    """
    faces = {
        "threads": "from shardctl.router import ShardedDatabase",
        "asyncio": "from shardctl.router import AsyncShardedDatabase",
    }
    sides = {"psycopg": _side("import psycopg")} | {n: _side(one) for n, one in faces.items()}
    for side in sides.values():
        side()
    times = alternate(sides, scale.of(41, 3))
    return [
        compare(
            f"router: import of the face for {face}",
            times[face],
            times["psycopg"],
            against="import psycopg",
            shown=milliseconds,
            target=1.3,
        )
        for face in faces
    ]


def _side(statement: str) -> Side:
    command = [sys.executable, "-c", _TIMED.format(statement)]

    def side() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return float(done.stdout)

    return side
