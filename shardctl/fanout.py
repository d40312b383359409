"""Bounded parallel work: ordered results, an error per item, progress, a safe stop."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shardctl.errors import ShardctlError, together
from shardctl.meter import Meters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Item = TypeVar("Item")
Value = TypeVar("Value")


Progress = Meters
"""What long work reports to; `cli` draws it, tests and libraries pass `Silent()`."""


class Silent(Meters):
    """Progress that is not shown."""


WIDTH = 16
"""How many nodes, poolers or hosts are worked on at a time, however many the topology has."""
_CANCEL_EVERY_S = 0.1


class _Here(threading.local):
    """What a thread works for: an event of each `run` around it, set by Ctrl-C."""

    interrupts: tuple[threading.Event, ...] = ()


_HERE = _Here()


def interrupted() -> bool:
    """Return whether Ctrl-C was pressed in a `run` that waits for the work of this thread."""
    return any(one.is_set() for one in _HERE.interrupts)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, Value]):
    """What became of one item: `error` is None exactly when `value` holds the result."""

    item: Item
    value: Value | None
    error: Exception | None

    def result(self) -> Value:
        """Give the value, or raise the error that came instead."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error it was set


def run(
    items: Iterable[Item],
    work: Callable[[Item], Value],
    *,
    width: int = WIDTH,
    stop: threading.Event | None = None,
    cancel: Callable[[], None] | None = None,
) -> list[Outcome[Item, Value]]:
    """Call `work` on every item, at most `width` at a time, and give outcomes in item order.

    An exception of one item is its outcome's error; the other items go on. When `stop` is
    set (or Ctrl-C arrives, which sets it), items not yet begun are left out of the result
    and running ones are waited for; after a Ctrl-C, KeyboardInterrupt is raised then. Ctrl-C
    also calls `cancel`, again and again until nothing runs, and `interrupted` shows it to the work.
    """
    todo = list(items)
    stop = stop or threading.Event()
    pressed = threading.Event()
    interrupts = (*_HERE.interrupts, pressed)

    def one(item: Item) -> Outcome[Item, Value] | None:
        _HERE.interrupts = interrupts
        if stop.is_set():
            return None
        try:
            return Outcome(item, work(item), None)
        except Exception as error:  # noqa: BLE001  # the caller decides, item by item
            return Outcome(item, None, error)

    if not todo:
        return []
    with ThreadPoolExecutor(max_workers=min(width, len(todo))) as pool:
        futures: list[Future[Outcome[Item, Value] | None]] = [pool.submit(one, i) for i in todo]
        pending = set(futures)
        interrupt: KeyboardInterrupt | None = None
        while pending:
            again_s = _CANCEL_EVERY_S if interrupt and cancel else None
            try:
                if interrupt and cancel:
                    cancel()
                pending = wait(pending, again_s, FIRST_COMPLETED).not_done
            except KeyboardInterrupt as caught:
                stop.set()
                pressed.set()
                interrupt = caught
    if interrupt is not None:
        raise interrupt
    return [outcome for future in futures if (outcome := future.result()) is not None]


@dataclass(frozen=True, slots=True)
class Collected(Generic[Item, Value]):
    """What became of items, in their order: the value of each, or the problem that it has."""

    values: list[tuple[Item, Value]]
    problems: list[tuple[Item, ShardctlError]]

    @property
    def errors(self) -> list[ShardctlError]:
        """List the problems without their items."""
        return [error for _, error in self.problems]

    def every(self) -> list[Value]:
        """Give the values of all items, or raise the problem that there is, or Problems."""
        if self.problems:
            raise together(self.errors)
        return [value for _, value in self.values]


def collect(
    items: Iterable[Item],
    work: Callable[[Item], Value],
    *,
    width: int = WIDTH,
    stop: threading.Event | None = None,
) -> Collected[Item, Value]:
    """Call `work` on every item as `run` does; what is no ShardctlError is a bug and raised."""
    found: Collected[Item, Value] = Collected([], [])
    for outcome in run(items, work, width=width, stop=stop):
        if isinstance(outcome.error, ShardctlError):
            found.problems.append((outcome.item, outcome.error))
        else:
            found.values.append((outcome.item, outcome.result()))
    return found


def at_once(*works: Callable[[], object]) -> None:
    """Do a few things at the same time; when all are done, raise the first of their errors."""
    for outcome in run(works, lambda work: work(), width=len(works)):
        outcome.result()
