"""How long `metrics` takes with many shards: the whole process, Python's start included."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.bench import fleet
from tests.bench.measure import Row, say, seconds
from tests.bench.verify import THIRD_TABLE

if TYPE_CHECKING:
    from tests.bench.measure import Scale

_TARGET_S = 1.0


def many_shards(scale: Scale) -> list[Row]:
    """Time `metrics` of 8,192 shards x 3 tables on 4 nodes, as a timer runs it."""
    shards = scale.of(8_192, 16)
    with fleet.running(4) as running:
        (running.directory / "migrations" / "0003_tags.sql").write_text(THIRD_TABLE)
        say(f"  init of {shards} shards")
        topology = running.init(shards)
        running.settle()
        command = [fleet.SHARDCTL, "--topology", topology.path, "metrics"]
        command += ["--textfile", running.directory]
        took = [_timed(command) for _ in range(scale.of(5, 1))]
    middle = statistics.median(took)
    return [
        Row(
            f"metrics, {shards:,} shards x 3 tables, 4 nodes",
            seconds(middle),
            "",
            target=f"<= {_TARGET_S:g} s",
            met=middle <= _TARGET_S,
            note=f"{min(took):.2f}-{max(took):.2f} s",
        )
    ]


def _timed(command: list[object]) -> float:
    watched = [sys.executable, "-c", fleet.WATCHER, *map(str, command)]
    done = subprocess.run(watched, check=True, text=True, stderr=subprocess.PIPE)
    return float(done.stderr.split()[-2])
