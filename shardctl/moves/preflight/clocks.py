"""Clocks: new ids must be above all earlier ones, whichever node made those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import clock
from shardctl.moves.preflight import target
from shardctl.moves.refusals import PreflightRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.clock import Offset
    from shardctl.moves.preflight.subject import Context


def of_source(context: Context) -> Offset:
    """Compare the source's clock with this machine's."""
    return clock.of_server(context.session)


def of_target(context: Context) -> Offset:
    """Compare the clock of the target's host with this machine's."""
    return clock.of_host(context.need(target.look).host)


def judge(context: Context) -> Iterator[PreflightRefused]:
    """Compare the clocks of source and target, as far as they are known."""
    found = {
        f"node {context.plan.source}": context.of(of_source),
        f"the host of node {context.plan.target}": context.of(of_target),
    }
    yield from differing({where: one for where, one in found.items() if one is not None})


def differing(offsets: Mapping[str, Offset]) -> Iterator[PreflightRefused]:
    """Find clocks that differ for certain by more than `clock.ERROR_S`, in s.

    Two clocks may differ too much from each other, though each is close enough to this machine's.
    """
    reported: set[str] = set()
    for where, offset in offsets.items():
        if abs(offset.ahead) - offset.uncertainty > clock.ERROR_S:
            reported.add(where)
            yield _skewed(where, offset.ahead, "the clock of shardctl's machine")
    rest = sorted((o.ahead, o.uncertainty, w) for w, o in offsets.items() if w not in reported)
    if len(rest) > 1:
        slow, fast = rest[0], rest[-1]
        if fast[0] - slow[0] - fast[1] - slow[1] > clock.ERROR_S:
            yield _skewed(fast[2], fast[0] - slow[0], f"that of {slow[2]}")


def _skewed(where: str, ahead: float, reference: str) -> PreflightRefused:
    direction = "ahead of" if ahead > 0 else "behind"
    return PreflightRefused(
        where,
        "clock_skew",
        f"its clock is {abs(ahead):.2f} s {direction} {reference}; a move allows at most "
        f"{clock.ERROR_S:g} s",
        hint="synchronise the clocks (chrony, systemd-timesyncd): ids contain the time",
    )
