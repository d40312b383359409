"""Bounded parallel work."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from shardctl import fanout


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
