"""Clocks: new ids must lie above all earlier ones, whoever made those."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.checks import clock
from shardctl.moves.preflight import target
from shardctl.moves.refusals import PreflightRefused
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardctl.checks.clock import Offset
    from shardctl.moves.preflight.subject import Context

_SECONDS = 10.0
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::double precision"


def of_source(context: Context) -> Offset:
    """Compare the source's clock with the one here."""

    def ask() -> float:
        (seconds,) = queries.one(context.session, _CLOCK)
        return float(seconds)

    return _offset(ask)


def of_target(context: Context) -> Offset:
    """Compare the clock of the target's host with the one here."""
    host, whole = context.need(target.look).host, False

    def ask() -> float:
        nonlocal whole
        seconds, _, fraction = host.run(["date", "+%s.%N"], timeout=_SECONDS).stdout.partition(".")
        whole = not fraction.strip().isdigit()  # not every `date` knows %N
        return float(seconds) + 0.5 if whole else float(f"{seconds}.{fraction}")

    offset = _offset(ask)
    return replace(offset, uncertainty=offset.uncertainty + 0.5) if whole else offset


def judge(context: Context) -> Iterator[PreflightRefused]:
    """Compare the clocks of source and target, as far as they are known."""
    found = {
        f"node {context.plan.source}": context.of(of_source),
        f"the host of node {context.plan.target}": context.of(of_target),
    }
    yield from differing({where: one for where, one in found.items() if one is not None})


def differing(offsets: Mapping[str, Offset]) -> Iterator[PreflightRefused]:
    """Find clocks that differ for certain by more than `clock.ERROR_S`, in s.

    Of two that differ from each other each may be near enough to the one here.
    """
    told: set[str] = set()
    for where, offset in offsets.items():
        if abs(offset.ahead) - offset.uncertainty > clock.ERROR_S:
            told.add(where)
            yield _skewed(where, offset.ahead, "the clock of shardctl's machine")
    rest = sorted((o.ahead, o.uncertainty, w) for w, o in offsets.items() if w not in told)
    if len(rest) > 1:
        slow, fast = rest[0], rest[-1]
        if fast[0] - slow[0] - fast[1] - slow[1] > clock.ERROR_S:
            yield _skewed(fast[2], fast[0] - slow[0], f"that of {slow[2]}")


def _offset(ask: Callable[[], float]) -> Offset:
    return clock.estimate([_sample(ask) for _ in range(clock.SAMPLES)])


def _sample(ask: Callable[[], float]) -> clock.Sample:
    # A clock that is set meanwhile must not make a round trip short.
    began = time.monotonic()
    there = ask()
    received, ended = time.time(), time.monotonic()
    return clock.Sample(there, received, ended - began)


def _skewed(where: str, ahead: float, reference: str) -> PreflightRefused:
    direction = "ahead of" if ahead > 0 else "behind"
    return PreflightRefused(
        where,
        "clock_skew",
        f"its clock is {abs(ahead):.2f} s {direction} {reference}; at most {clock.ERROR_S:g} s "
        "is fit for a move",
        hint="synchronise the clocks (chrony, systemd-timesyncd): ids take their time from them",
    )
