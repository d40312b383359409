"""What all benches share: rows of the table, and timing sides by turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Side = Callable[[], float]
"""Does one side's share of a round and gives the seconds that count; the rest is its setting up."""


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

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ours": self.ours,
            "reference": self.reference,
            "ratio": self.ratio,
            "spread": self.spread,
            "target": self.target,
            "met": self.met,
            "note": self.note,
        }


def alternate(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Time every side once a round; each round runs in the opposite order of the one before.

    A B, B A, A B ...: whatever drifts (a table that grows, a disk that fills, a neighbour on
    the machine) meets both sides alike, and nobody is always the one who runs second.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            times[name].append(sides[name]())
        order.reverse()
    return times


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
