"""Rates, times that are left, and stalls, on a clock that tests set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.meter import BYTES, STALLED_S, WINDOW_S, Meter, Meters

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(meter: Meter, clock: Clock, steps: Sequence[tuple[float, int]]) -> None:
    for pause, done in steps:
        clock.now += pause
        meter.advance(done)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    meter = Meter("copying", 0, BYTES, clock=clock)
    run(meter, clock, [(0.5, 1000)] * 100)
    run(meter, clock, [(0.5, 10)] * int(2 * WINDOW_S + 4))
    assert meter.read().rate == pytest.approx(20, rel=0.1)
    assert meter.read().eta_s is None  # of what has no total


def test_a_rate_falls_and_then_the_work_is_stalled() -> None:
    clock = Clock()
    meter = Meter("copying", 10_000, BYTES, clock=clock)
    run(meter, clock, [(0.5, 100)] * 20)
    before = meter.read().rate
    clock.now += STALLED_S - 1
    falling = meter.read()
    assert before is not None
    assert falling.rate is not None
    assert falling.rate < before * 0.75
    clock.now += 13
    stalled = meter.read()
    assert (stalled.rate, stalled.eta_s) == (None, None)
    assert stalled.stalled_s == pytest.approx(12 + STALLED_S)
    meter.advance(1)
    assert meter.read().stalled_s is None


def test_what_is_waited_for_has_no_rate_and_counts_from_its_begin() -> None:
    clock = Clock()
    meters = Meters(clock=clock)
    meters.waits("a", "nothing that has begun")
    meters.expect("a", "migrating", 8, "shards")
    clock.now += 2
    meters.advance("a", 3)
    meters.waits("a", "a lock of session 7")
    clock.now += 5
    meters.waits("a", "a lock of session 7")
    clock.now += 5
    found = meters.read()["a"]
    assert (found.waits, found.waits_s, found.rate) == ("a lock of session 7", 10, None)
    meters.advance("a", 5)
    assert not meters.read()["a"].complete
    meters.waits("a", None)
    assert (meters.read()["a"].waits, meters.read()["a"].complete) == (None, True)
