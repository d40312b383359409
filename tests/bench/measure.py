"""What all benches share: rows of the table, and timing sides by turns."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Done = TypeVar("Done")

Side = Callable[[], float]
"""Does one side's share of a round and gives the seconds that count; the rest is its setting up."""

BROKEN: list[str] = []
"""The rounds that broke in the bench at work, with the reason: `run.py` reports and empties it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a run is: `quick` is a smoke test of the benches, and no measurement."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        """Choose a count."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `met` None is a row without a target."""

    name: str
    ours: str
    reference: str
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    """The lowest and the highest ratio of a round."""
    target: str = "-"
    met: bool | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "-"
        return "ok" if self.met else "MISSED"


def timed(work: Callable[[], object]) -> Side:
    """Make a side of which all counts."""

    def side() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return side


def alternate(
    sides: Mapping[str, Side], count: int, *, warm: bool = False
) -> dict[str, list[float]]:
    """Time every side once a round; each round runs in the opposite order of the one before.

    `warm` runs each once before: statements are prepared, pages are in memory.

    A B, B A, A B ...: whatever drifts (a table that grows, a disk that fills, a neighbour on
    the machine) meets both sides alike, and neither side always runs second. A round that breaks
    is the last, and does not count; raises what the first round raises.
    """
    order = list(sides)
    for name in order if warm else ():
        sides[name]()

    def once(number: int) -> dict[str, float]:
        return {name: sides[name]() for name in order[:: -1 if number % 2 else 1]}

    # What a broken round shares with others may be broken, too.
    done = rounds(count, once, until_broken=True)
    return {name: [took[name] for took in done] for name in order}


def in_turn(number: int, *sides: Callable[[], Any]) -> list[Any]:
    """Do all sides, in the opposite order each time, and give in this order what came of them."""
    done = {side: side() for side in (sides if number % 2 == 0 else reversed(sides))}
    return [done[side] for side in sides]


def rounds(count: int, once: Callable[[int], Done], *, until_broken: bool = False) -> list[Done]:
    """Do a round so many times, and return what those gave that succeeded.

    `once` gets the number of its round, from 0. Raises what the last round raised if none
    succeeded; `until_broken` makes the first that breaks the last.
    """
    done: list[Done] = []
    for number in range(count):
        try:
            done.append(once(number))
        except Exception as error:
            if not done and (until_broken or number == count - 1):
                raise
            _broke(number, error)
            if until_broken:
                break
    return done


def _broke(number: int, error: Exception) -> None:
    traceback.print_exc()
    lines = str(error).strip().splitlines() or [type(error).__name__]
    BROKEN.append(f"round {number + 1}: {lines[-1].strip()}")


def compare(
    name: str,
    ours: Sequence[float],
    reference: Sequence[float],
    *,
    against: str,
    shown: Callable[[float], str],
    target: float | None = None,
    note: str = "",
) -> Row:
    """Make a row of the times of both sides: the median of the ratios of the rounds."""
    ratios = [a / b for a, b in zip(ours, reference, strict=True)]
    ratio = statistics.median(ratios)
    return Row(
        name=name,
        ours=shown(statistics.median(ours)),
        reference=f"{against} {shown(statistics.median(reference))}",
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        target="-" if target is None else f"<= {target:g}",
        met=None if target is None else ratio <= target,
        note=note,
    )


def versus(
    name: str,
    sides: Mapping[str, Side],
    count: int,
    against: Mapping[str, tuple[str, float | None]],
    shown: Callable[[float], str],
    *,
    warm: bool = False,
    note: str = "",
) -> list[Row]:
    """Time the sides in turn, and compare the first with each side in `against`."""
    times = alternate(sides, count, warm=warm)
    ours, *_ = times.values()
    return [
        compare(name, ours, times[side], against=text, shown=shown, target=target, note=note)
        for side, (text, target) in against.items()
    ]


def limit(name: str, value: float, most: float, unit: str, *, note: str = "") -> Row:
    """Make a row of something that is to be at most `most`."""
    target = f"<= {most:g} {unit}".rstrip()
    return Row(name, f"{value:.2f} {unit}", "", target=target, met=value <= most, note=note)


def per(count: int, unit: str) -> Callable[[float], str]:
    """Show seconds as a small unit for each of `count` things."""

    def shown(seconds: float) -> str:
        each = seconds / count
        return f"{each * 1e6:.2f} us/{unit}" if each < 1e-3 else f"{each * 1e3:.2f} ms/{unit}"

    return shown


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def milliseconds(value: float) -> str:
    return f"{value * 1000:.1f} ms"


def say(text: str) -> None:
    """Tell on standard error what is going on."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # progress of minutes
