"""The one page that a soak ends with, in Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.soak import windows
from tests.soak.checker import RULES, SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.soak.checker import Violation
    from tests.soak.history import Op, Pause
    from tests.soak.soak import Event
    from tests.soak.windows import Window

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_WAITS = 5
_FLAT = 1.25
"""By how much memory may be larger in the last third than in the first."""
_FEW_KB = 4096


@dataclass(frozen=True, slots=True)
class Findings:
    """What the page is made of; times are as the history has them."""

    seed: int
    seconds: float
    began: float
    ended: float
    disks: bool
    events: Sequence[Event]
    moves: Mapping[str, int]
    """How many moves ended in which state."""
    ops: Sequence[Op]
    pauses: Sequence[Pause]
    windows: Sequence[Window]
    violations: Sequence[Violation]
    connections: Mapping[str, Sequence[tuple[float, int]]]
    memory: Mapping[str, Sequence[tuple[float, int]]]
    commands: Sequence[tuple[str, int]]
    broken: str = ""

    @property
    def outside(self) -> list[Op]:
        """Give the errors that no window allows."""
        return windows.outside(self.ops, self.windows)

    @property
    def ok(self) -> bool:
        return not (self.violations or self.outside or self.broken)


def render(found: Findings) -> str:
    """Compose the page."""
    lines = [
        f"# Soak: {found.ended - found.began:.0f} s with seed {found.seed}",
        "",
        "No violation, and no error outside the windows that the documentation allows."
        if found.ok
        else "**Something is wrong.**",
        "",
        f"The schedule of {found.seconds:.0f} s is the seed's; how processes took turns is not.",
        *([] if found.disks else ["Nodes had no disks of their own, so no disk was filled."]),
        *([f"It ended early: {found.broken}"] if found.broken else []),
        "",
        *_violations(found.violations),
        *_operations(found),
        *_errors(found),
        *_waits(found),
        *_over_time(found),
    ]
    return "\n".join(lines) + "\n"


def spark(series: Iterable[tuple[float, int]], began: float, ended: float) -> str:
    """Draw the highest value of each stretch of time as a bar, a blank where there is none.

    >>> spark([(0.0, 1), (5.0, 2), (9.9, 8)], 0.0, 10.0).strip()[-1]
    '█'
    """
    cells = [-1] * _WIDTH
    for at, value in series:
        place = int((at - began) / max(ended - began, 1e-9) * _WIDTH)
        if 0 <= place < _WIDTH:
            cells[place] = max(cells[place], value)
    highest = max(1, *cells)
    return "".join(
        " " if cell < 0 else _BARS[min(len(_BARS) - 1, cell * len(_BARS) // (highest + 1))]
        for cell in cells
    )


def flat(series: Sequence[tuple[float, int]]) -> bool:
    """Tell whether the median of the last third is about that of the first."""
    third = len(series) // 3
    if not third:
        return True
    first, last = (
        statistics.median(value for _, value in part) for part in (series[:third], series[-third:])
    )
    return last <= first * _FLAT or last - first <= _FEW_KB


def _violations(violations: Sequence[Violation]) -> Iterator[str]:
    counted = Counter(one.rule for one in violations)
    yield from _header("rule", "violations")
    yield from (f"| {rule} | {counted[rule]} |" for rule in RULES)
    yield ""
    for rule in counted:
        texts = [one.text for one in violations if one.rule == rule]
        yield from (f"- {rule}: {_line(text)}" for text in texts[:SHOWN])
        if len(texts) > SHOWN:
            yield f"- {rule}: {len(texts) - SHOWN} more"
    yield ""


def _operations(found: Findings) -> Iterator[str]:
    yield from ("## Operations and faults", "", *_header("operation", "times", "exit codes"))
    codes: dict[str, Counter[str]] = {}
    for event in found.events:
        if event.kind in {"operation", "ending", "second"}:
            name = (
                _name(event.what)
                if event.kind == "operation"
                else f"{_name(event.what)} ({event.kind})"
            )
            codes.setdefault(name, Counter())[event.result.split(":")[0].split(",")[0]] += 1
    for name, counted in sorted(codes.items()):
        told = ", ".join(f"{code}: {count}" for code, count in sorted(counted.items()))
        yield f"| {name} | {counted.total()} | {told} |"
    moves = ", ".join(f"{count} {state}" for state, count in sorted(found.moves.items()))
    faults = [event for event in found.events if event.kind == "fault"]
    missed = [one for one in faults if one.result.startswith(("nothing", "step", "not", "could"))]
    yield from (
        "",
        f"Moves: {moves or 'none'}.",
        f"Faults: {len(faults)}, of which {len(missed)} found nothing to harm.",
        "",
    )
    yield from _header("fault", "times", "found nothing")
    times = Counter(event.what.split(" in ")[0] for event in faults)
    none = Counter(event.what.split(" in ")[0] for event in missed)
    yield from (f"| {kind} | {count} | {none[kind]} |" for kind, count in sorted(times.items()))
    alone = [e for e in found.events if e.result.endswith("no fault") and e.result != "0, no fault"]
    if alone:
        yield from ("", "Commands that ended with another code than 0 without a fault:", "")
        yield from (
            f"- episode {e.number}: {e.what}: {_line(e.result)}" for e in alone[: 2 * SHOWN]
        )
    yield ""


def _errors(found: Findings) -> Iterator[str]:
    yield from ("## Errors of clients", "", f"{len(found.ops):,} operations.", "")
    yield from _header("allowed by", "code", "client", "errors")
    counted = windows.classify(found.ops, found.windows)
    for (reason, code, by), count in sorted(counted.items()):
        name = f"**{reason}**" if reason == windows.OUTSIDE else reason
        yield f"| {name} | {code} | {by} | {count} |"
    yield ""
    for op in found.outside[:SHOWN]:
        at = op.begin - found.began
        told = f"{op.kind}: {op.code} {_line(op.message)}"
        yield f"- {at:.1f} s: {op.client}, shard {op.shard}, {told}"
    yield ""


def _waits(found: Findings) -> Iterator[str]:
    yield from ("## Longest waits", "", *_header("client", "operations", "longest", "at"))
    by: dict[str, list[Op]] = {}
    for op in found.ops:
        if op.client.split("-")[0] != "holder":
            by.setdefault(op.by, []).append(op)
    for name, ops in sorted(by.items()):
        longest = max(ops, key=lambda op: op.end - op.begin)
        took, at = longest.end - longest.begin, longest.begin - found.began
        yield f"| {name} | {len(ops):,} | {took:.2f} s | {at:.0f} s |"
    pauses = sorted((one.end - one.begin for one in found.pauses), reverse=True)
    shown = ", ".join(f"{lasted:.1f} s" for lasted in pauses[:_WAITS])
    yield from ("", f"Longest pauses that were seen: {shown or 'none'}.", "")


def _over_time(found: Findings) -> Iterator[str]:
    yield from ("## Memory and connections over time", "", "```text")
    span = (found.began, found.ended)
    for node, series in sorted(found.connections.items()):
        most = max((value for _, value in series), default=0)
        yield f"connections of {node:<3} {spark(series, *span)} most {most}"
    for pooler, series in sorted(found.memory.items()):
        most = max((value for _, value in series), default=0)
        told = "flat" if flat(series) else "GROWS"
        yield f"memory of {pooler:<8} {spark(series, *span)} most {most / 1024:.1f} MB, {told}"
    peaks = [
        (float(n), kb)
        for n, (words, kb) in enumerate(found.commands)
        if words.startswith("move-shards")
    ]
    told = "flat" if flat(peaks) else "GROWS"
    most = max((kb for _, kb in peaks), default=0)
    drawn = spark(peaks, 0, len(found.commands))
    yield f"memory of a move   {drawn} most {most / 1024:.1f} MB, {told}"
    yield "```"


def _name(words: str) -> str:
    """Give the command without its options, and the method and the handover of a move."""
    parts = words.split()
    if parts[0] == "move-shards":
        ways = [parts[at + 1] for at, one in enumerate(parts) if one in {"--method", "--handover"}]
        return ", ".join([parts[0], *ways])
    return " ".join(parts[:2]) if parts[0] in {"moves", "read-only", "pgbouncer"} else parts[0]


def _header(*columns: str) -> tuple[str, str]:
    return f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
