"""Bounded parallel work."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from shardctl import fanout
from shardctl.errors import ShardctlError


def test_no_more_run_at_once_than_the_width() -> None:
    running, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(2)

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(120)
        with lock:
            running -= 1

    fanout.run(range(6), work, width=2)
    assert most == 2


def test_after_a_stop_what_has_not_begun_is_left_out() -> None:
    stop = threading.Event()

    def work(n: int) -> int:
        stop.set()
        return n

    assert [o.item for o in fanout.run(range(5), work, width=1, stop=stop)] == [0]


def test_ctrl_c_waits_for_what_runs_and_is_raised_then(monkeypatch: pytest.MonkeyPatch) -> None:
    began, release, ended = threading.Event(), threading.Event(), []
    wait = concurrent.futures.wait
    interrupted = False

    def interrupt_once(*arguments: object, **options: object) -> object:
        nonlocal interrupted
        if not interrupted:
            assert began.wait(120)
            interrupted = True
            release.set()
            raise KeyboardInterrupt
        return wait(*arguments, **options)  # type: ignore[arg-type]  # as they came

    def work(n: int) -> None:
        began.set()
        assert release.wait(120)
        ended.append(n)

    monkeypatch.setattr(fanout, "wait", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        fanout.run(range(5), work, width=1)
    assert ended in ([0], [0, 1])


def test_ctrl_c_cancels_again_and_again_until_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation may come just too early."""
    began, release = threading.Event(), threading.Event()
    wait = concurrent.futures.wait
    cancelled: list[int] = []

    def interrupt_once(*arguments: object, **options: object) -> object:
        if not cancelled:
            assert began.wait(120)
            cancelled.append(0)
            raise KeyboardInterrupt
        return wait(*arguments, **options)  # type: ignore[arg-type]  # as they came

    def cancel() -> None:
        cancelled.append(len(cancelled))
        if len(cancelled) > 3:
            release.set()

    def work(_: int) -> None:
        began.set()
        assert release.wait(120)

    monkeypatch.setattr(fanout, "wait", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        fanout.run([0], work, width=1, cancel=cancel)
    assert len(cancelled) >= 4


def refuse_odd(n: int) -> int:
    if n % 2:
        raise ShardctlError(f"{n} is odd")
    return n * n


def test_a_single_problem_is_raised_by_itself_and_a_bug_at_once() -> None:
    with pytest.raises(ShardctlError, match="3"):
        fanout.collect([2, 3], refuse_odd, width=1).every()
    with pytest.raises(ZeroDivisionError):
        fanout.collect([1, 0], lambda n: 2 // n, width=2)
