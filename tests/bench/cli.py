"""How quick commands start, and `decode-id` works through the stream of a million."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, milliseconds, seconds, timed, versus

if TYPE_CHECKING:
    from tests.bench.measure import Scale, Side

EPOCH_MS = 1_314_220_021_721
SPAN_MS = 5 * 365 * 86_400_000
NOW_MS = 1_760_000_000_000

# A program of one command, as typer's own documentation begins.
_HELLO = """\
import typer

app = typer.Typer()


@app.command()
def hello():
    print("11637205501278089  2011-09-09T22:28:04.721Z    1341       905")


def main():
    app()
"""

# What somebody writes who needs it once. Nothing in it is slow on purpose: isoformat() is
# quicker than strftime(), one print() a line with one f-string is what most would write.
_LOOP = """\
import sys
from datetime import datetime, timezone

EPOCH = 1314220021721

for line in sys.stdin:
    number = int(line)
    time = datetime.fromtimestamp(((number >> 23) + EPOCH) / 1000, timezone.utc)
    text = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    print(f"{number}\\t{text}\\t{number >> 10 & 8191}\\t{number & 1023}")
"""


STARTS: dict[str, tuple[list[str], float]] = {
    "shardctl --help": (["--help"], 0.75),
    "shardctl decode-id 1": (["decode-id", "1"], 1.2),
    "shardctl decode-id 1, with a topology": (["decode-id", "1", "--topology"], 1.8),
    "shardctl status --sample 0, 8 shards": (["status", "--sample", "0", "--topology"], 3.0),
}
"""Commands -> their words, before the topology where they have one; most times of CPU of hello."""


def starts(scale: Scale) -> list[Row]:
    """Count the CPU of short commands against a typer program of one command that prints a line.

    Fair: both are scripts as pip writes them, with the same Python and the same typer,
    compiled beforehand, in an empty directory, so that no topology is read unless it is given. The
    other program has neither arguments nor options. Of `status`, the servers' CPU does not count.
    """
    rounds = scale.of(20, 2)
    with (
        fleet.running(2) as servers,
        tempfile.TemporaryDirectory(prefix="shardctl-bench-") as made,
    ):
        directory = Path(made)
        (directory / "hello.py").write_text(_HELLO)
        script = directory / "hello"
        script.write_text(fleet.SHARDCTL.read_text().replace("shardctl.cli.app", "hello"))
        script.chmod(0o755)
        empty = directory / "empty"
        empty.mkdir()
        topology = servers.init(8).path

        def of(argv: list[str | Path]) -> Side:
            def side() -> float:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(argv, cwd=empty, stdout=subprocess.DEVNULL, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
                return user + system

            return side

        sides = {"hello": of([script])}
        for name, (words, _) in STARTS.items():
            file = [topology] if words[-1] == "--topology" else []
            sides[name] = of([fleet.SHARDCTL, *words, *file])
        times = alternate(sides, rounds, warm=True)
    return [
        compare(
            f"{name}, CPU",
            times[name],
            times["hello"],
            against="typer hello",
            shown=milliseconds,
            target=target,
        )
        for name, (_, target) in STARTS.items()
    ]


def many_ids(scale: Scale) -> list[Row]:
    """Time decoding a million ids from standard input.

    Fair: the whole process with its start; ids of five years, all shards and all sequence
    numbers, in no order, so that what the decoder remembers of one is of no use for the
    next; both outputs must be equal, byte for byte. Either of two criteria suffices, by the
    issue: 500,000 ids a second, or 1.5 times what the simple loop takes. Both are shown.
    """
    count, rounds = scale.of(1_000_000, 5_000), scale.of(5, 1)
    with tempfile.TemporaryDirectory(prefix="shardctl-bench-") as made:
        directory = Path(made)
        loop = directory / "loop.py"
        loop.write_text(_LOOP)
        given = directory / "given"
        _write_ids(given, count)
        programs: dict[str, list[str | Path]] = {
            "ours": [fleet.SHARDCTL, "decode-id", "-o", "tsv"],
            "loop": [sys.executable, loop],
        }
        sides = {
            name: timed(partial(_filter, argv, given, directory / name))
            for name, argv in programs.items()
        }
        name = f"decode-id, {count:,} ids from stdin to tsv"
        [row] = versus(name, sides, rounds, {"loop": ("simple loop", None)}, seconds)
        if (directory / "ours").read_bytes() != (directory / "loop").read_bytes():
            raise RuntimeError("shardctl and the simple loop print different things")
    rate = count / float(row.ours.split()[0])
    met = (row.ratio or 0) <= 1.5 or rate >= 500_000
    shown, target = f"{row.ours} = {rate:,.0f}/s", "<= 1.5 or >= 500,000/s"
    return [replace(row, ours=shown, target=target, met=met)]


def _write_ids(file: Path, count: int) -> None:
    chance = random.Random(2011)  # noqa: S311  # the same ids in every run, no secret
    with file.open("w", encoding="ascii") as out:
        for _ in range(count):
            time_ms = NOW_MS - chance.randrange(SPAN_MS) - EPOCH_MS
            out.write(f"{time_ms << 23 | chance.randrange(1 << 23)}\n")


def _filter(argv: list[str | Path], source: Path, output: Path) -> None:
    """Run a program from file to file in an empty directory."""
    with (
        tempfile.TemporaryDirectory() as empty,
        source.open("rb") as given,
        output.open("wb") as taken,
    ):
        subprocess.run(argv, cwd=empty, stdin=given, stdout=taken, check=True)
