"""What tasks and threads do differently: each of it twice, side by side.

The names for tasks begin with A or a, those for threads are the same without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.errors import ShardctlError
from shardctl.router.errors import AnotherLoop, Closed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

EXPECTED = (psycopg.Error, ShardctlError, TimeoutError)
"""What a call that runs beside others may raise; anything else is a bug."""
_threads: ThreadPoolExecutor
"""Calls that ask several nodes share these."""

ALock, Lock = asyncio.Lock, threading.Lock
asleep, sleep = asyncio.sleep, time.sleep


@contextlib.asynccontextmanager
async def a_held(lock: asyncio.Lock, until: float | None) -> AsyncIterator[bool]:
    """Hold a lock during a block; gives False where it was not free in time."""
    try:
        async with asyncio.timeout(None if until is None else until - time.monotonic()):
            await lock.acquire()
    except TimeoutError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def held(lock: threading.Lock, until: float | None) -> Iterator[bool]:
    """Do the same in a thread."""
    if not lock.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def a_self() -> Any:
    """Identify the task that calls."""
    return asyncio.current_task()


def myself() -> Any:
    """Identify the thread that calls."""
    return threading.get_ident()


def cancellations() -> int:
    """Count the requests to cancel the current task that it has not dealt with."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class ALoop:
    """The event loop that a database belongs to: the one in which it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def require(self, *, closed: bool) -> None:
        """See that this is the loop; raises AnotherLoop, or Closed for a closed database."""
        running = asyncio.get_running_loop()
        if self._loop is not running:
            if self._loop is not None:
                raise Closed if closed else AnotherLoop
            self._loop = running

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, and with it all that was waiting."""
        return self._loop is not None and self._loop.is_closed()


class Loop:
    """What threads have instead: nothing."""

    has_ended = False

    def require(self, *, closed: bool) -> None:
        """Do nothing."""


async def a_together(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run all calls at once; give what each returned, or its error if that is an expected one.

    When it is cancelled, all are, and it waits until they have given back what they hold.
    """
    outcomes = await asyncio.gather(*map(_a_outcome, calls), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, EXPECTED):
            raise outcome
    return outcomes


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do the same in threads that all callers share; the caller's own is one more."""
    others = [_threads.submit(_outcome, call) for call in calls[1:]]
    try:
        own = [_outcome(call) for call in calls[:1]]
    finally:
        wait(others)
    return [*own, *(other.result() for other in others)]


async def a_first(
    calls: Sequence[Callable[[], Awaitable[Any]]], wanted: Callable[[Any], bool], until: float
) -> list[Any]:
    """Run calls until one returns what `wanted` accepts, or time is over, on `time.monotonic`.

    Gives all outcomes until then, as `a_together`; the calls still running are cancelled.
    """
    tasks = {asyncio.ensure_future(_a_outcome(call)) for call in calls}
    found: list[Any] = []
    try:
        while tasks and not any(map(wanted, found)):
            done, tasks = await asyncio.wait(
                tasks,
                timeout=max(0.0, until - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                break
            found += [task.result() for task in done]
    finally:
        for task in tasks:
            task.cancel()
            _ending.add(task)  # the loop itself keeps no hold on it
            task.add_done_callback(_ending.discard)
    return found


def first(
    calls: Sequence[Callable[[], Any]], wanted: Callable[[Any], bool], until: float
) -> list[Any]:
    """Do the same in threads; those still running end by themselves."""
    threads = ThreadPoolExecutor(len(calls), thread_name_prefix="shardctl-map")
    futures = [threads.submit(_outcome, call) for call in calls]
    threads.shutdown(wait=False)
    found: list[Any] = []
    with contextlib.suppress(TimeoutError):  # later answers are not used
        for future in as_completed(futures, max(0.0, until - time.monotonic())):
            found.append(future.result())
            if wanted(found[-1]):
                break
    return found


def _begin() -> None:
    """Make the threads, which a child of a fork does not have; each starts when it is needed.

    There are enough for many calls that wait for a node which hangs.
    """
    global _threads  # noqa: PLW0603  # a process has one
    _threads = ThreadPoolExecutor(1000, thread_name_prefix="shardctl-router")


_begin()
os.register_at_fork(after_in_child=_begin)

_ending: set[asyncio.Future[Any]] = set()
"""Tasks that were cancelled and clean up."""


async def _a_outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except EXPECTED as error:
        return error


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except EXPECTED as error:
        return error
