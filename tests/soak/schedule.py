"""What is done to the fleet, drawn from a seed: operations, and faults in the middle of them.

A seed repeats the schedule and not the interleaving: which node, shard or session a number picks
depends on what is there at that moment, and how processes take turns on the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPERATIONS: Mapping[str, int] = {
    "stream": 6,
    "clone": 2,
    "clone by stream": 3,
    "reverse": 3,
    "finish": 1,
    "doctor": 1,
    "read-only": 2,
    "prune": 2,
    "migrate": 1,
    "pgbouncer apply": 1,
    "verify": 1,
    "init": 1,
    "repack": 1,
}
"""How often each is in a deck. A command that is added is one more row, and one in operations."""

FAULTS: Mapping[str, int] = {
    "kill shardctl": 5,
    "stop shardctl": 2,
    "kill guard": 1,
    "stop guard": 1,
    "kill pooler": 1,
    "stop pooler": 1,
    "kill server": 2,
    "stop server": 1,
    "cut shardctl": 1,
    "cut guard": 1,
    "cut clients": 1,
    "fill disk": 1,
    "immutable file": 1,
    "second operator": 2,
    "stale topology": 1,
    "vacuum full": 1,
    "lock table": 2,
    "alter": 1,
    "create table": 1,
    "grant": 1,
}
"""How often each is in a deck of faults."""

STEPS: Mapping[str, tuple[str, ...]] = {
    "stream": (
        "reserve",
        "structure",
        "copy",
        "indexes",
        "follow",
        "rehearse",
        "keep-reverse",
        "confirm",
        "retire",
    ),
    "reverse": ("reserve", "reopen", "follow", "rehearse", "confirm", "retire"),
    "clone": ("reserve", "clear", "clone", "follow", "confirm", "retire"),
    "clone by stream": (
        "reserve",
        "clear",
        "clone",
        "promote",
        "rehearse",
        "keep-reverse",
        "open",
        "confirm",
        "retire",
    ),
}
"""In which step of a move a fault may come; in half of all cases it is the cutover.

Two of three of these come from its first PAUSE on, when clients wait: `pause`, as if it were a
step. The cutover prepares for seconds what is over a fifth of a second later.
"""

MOVING = frozenset(STEPS)
REVERSIBLE = frozenset({"stream", "clone by stream"})
KEEP_REVERSE = ("--keep-reverse", "10m")
FINISH_REVERSE = "--finish-reverse"

_NUMBERS = (0, 1, 1, 1, 2, 3)
"""How many faults come in one episode."""
_READ_ONLY = 0.25
_TERMINATE = 0.3
_LATE = 0.5
_KEEP_REVERSE = 0.6
_FINISH_REVERSE = 0.85
"""Of moves; the others are refused where shards of theirs can be reversed."""
_PAUSE_S, _CUTOVER_S, _STEP_S, _ANY_S, _LONGEST_S = 0.12, 0.6, 1.0, 3.0, 6.0
_PAUSE = 2 / 3


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in an operation: so long after a step began, or the operation if it is ''."""

    kind: str
    step: str
    delay_s: float
    lasting_s: float
    pick: float
    """From 0 to 1: which of the things that it can be done to."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One operation with its faults, and the command that ends a move which it leaves."""

    number: int
    operation: str
    pick: float
    share: float
    """From 0 to 1: how many of the shards."""
    words: tuple[str, ...]
    """Further options of the command."""
    faults: tuple[Fault, ...]
    ending: Literal["resume", "abort"]
    late: bool = False
    """Whether that command comes when the guards have had their time."""


def episodes(seed: int) -> Iterator[Episode]:
    """Give the episodes of a seed, without an end; every kind comes within one deck."""
    chance = random.Random(seed)  # noqa: S311  # a schedule is not a secret
    operations, faults = _deck(chance, OPERATIONS), _deck(chance, FAULTS)
    number = 0
    while True:
        number += 1
        operation = next(operations)
        count = chance.choice(_NUMBERS)
        drawn = tuple(_fault(chance, next(faults), operation) for _ in range(count))
        yield Episode(
            number=number,
            operation=operation,
            pick=chance.random(),
            share=chance.random(),
            words=_words(chance, operation),
            faults=drawn,
            ending="resume" if chance.random() < 0.6 else "abort",
            late=chance.random() < _LATE,
        )


def _deck(chance: random.Random, weights: Mapping[str, int]) -> Iterator[str]:
    while True:
        cards = [name for name, count in weights.items() for _ in range(count)]
        chance.shuffle(cards)
        yield from cards


def _fault(chance: random.Random, kind: str, operation: str) -> Fault:
    step, most = "", _ANY_S
    if steps := STEPS.get(operation):
        step = "cutover" if chance.random() < 0.5 else chance.choice(steps)
        most = _CUTOVER_S if step == "cutover" else _STEP_S
        if step == "cutover" and chance.random() < _PAUSE:
            step, most = "pause", _PAUSE_S
    return Fault(
        kind=kind,
        step=step,
        delay_s=round(chance.random() * most, 3),
        lasting_s=round(0.3 + chance.random() ** 2 * _LONGEST_S, 3),
        pick=chance.random(),
    )


def _words(chance: random.Random, operation: str) -> tuple[str, ...]:
    words: list[str] = []
    if operation == "clone" and chance.random() < _READ_ONLY:
        words.append("--read-only")
    if operation in MOVING and chance.random() < _TERMINATE:
        words.append("--terminate")
    if operation in REVERSIBLE and chance.random() < _KEEP_REVERSE:
        words += KEEP_REVERSE
    if operation in {"clone", *REVERSIBLE} and chance.random() < _FINISH_REVERSE:
        words.append(FINISH_REVERSE)
    return tuple(words)
