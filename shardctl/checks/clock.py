"""Clocks that differ, between nodes and from the one here."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, WARNING, Check, Rule, Rules, Severity
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.hosts.host import Host
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

WARN_S = 0.05
ERROR_S = 0.5
_SKEW = Rule(
    WARNING + ERROR,
    "{whose} is {skew:.0f} ms {direction} {reference}",
    f"at most {WARN_S * 1000:.0f} ms",
    "synchronise the clocks (chrony, systemd-timesyncd): ids contain the time of the node's clock",
)
RULES = Rules("clock", dict.fromkeys(("skew", "skew_between", "skew_here"), _SKEW))

_SAMPLES = 5
_SECONDS = 10.0

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::double precision"


@dataclass(frozen=True, slots=True)
class Sample:
    """One query of a node's time: the answer, and when it arrived; in s."""

    there: float
    received: float
    round_trip: float


@dataclass(frozen=True, slots=True)
class Offset:
    """Seconds that a node's clock is ahead of the local one, give or take `uncertainty`."""

    ahead: float
    uncertainty: float


def estimate(samples: Sequence[Sample]) -> Offset:
    """Take the sample with the shortest way, as if the node had answered half-way.

    >>> estimate([Sample(10.5, 10.25, 0.5), Sample(20.5, 22.0, 3.0)])
    Offset(ahead=0.5, uncertainty=0.25)
    """
    best = min(samples, key=lambda sample: sample.round_trip)
    half = best.round_trip / 2
    return Offset(best.there - (best.received - half), half)


def look(place: Place) -> Offset:
    """Ask the node's clock a few times."""
    return of_server(place.connection)


def of_server(session: Connection) -> Offset:
    """Compare a server's clock with the one here; raises psycopg.Error."""
    return _measured(lambda: float(queries.one(session, _CLOCK)[0]))


def of_host(host: Host) -> Offset:
    """Compare a host's clock with the one here; raises CommandFailed, CommandTimedOut."""
    whole = False

    def ask() -> float:
        nonlocal whole
        seconds, _, fraction = host.run(["date", "+%s.%N"], timeout=_SECONDS).stdout.partition(".")
        whole = not fraction.strip().isdigit()  # not every `date` knows %N
        return float(seconds) + 0.5 if whole else float(f"{seconds}.{fraction}")

    offset = _measured(ask)
    return replace(offset, uncertainty=offset.uncertainty + 0.5) if whole else offset


def _measured(ask: Callable[[], float]) -> Offset:
    return estimate([_sample(ask) for _ in range(_SAMPLES)])


def _sample(ask: Callable[[], float]) -> Sample:
    # A clock that is set in the meantime must not make a round trip short.
    began = time.monotonic()
    there = ask()
    received, ended = time.time(), time.monotonic()
    return Sample(there, received, ended - began)


def judge(view: View[Offset]) -> Iterator[Finding]:
    """Find clocks that differ for certain.

    Where all nodes agree with each other and none with the clock here, that one is reported. Two
    nodes that differ are reported where neither of them was, as gravely.
    """
    skewed = {
        node: severity
        for node, offset in view.seen.items()
        if (severity := _severity(abs(offset.ahead) - offset.uncertainty))
    }
    pair = _furthest(view.seen)
    if pair is None:
        apart = None
    else:
        slow, fast = view.seen[pair[0]], view.seen[pair[1]]
        apart = _severity(fast.ahead - slow.ahead - fast.uncertainty - slow.uncertainty)
        if apart is None and len(skewed) == len(view.seen):
            ahead = (slow.ahead + fast.ahead) / 2
            yield _finding("skew_here", max(skewed.values(), key=_GRAVITY), -ahead, "all nodes")
            return
    for node, severity in skewed.items():
        ahead = view.seen[node].ahead
        yield _finding("skew", severity, ahead, "the clock of shardctl's machine", node)
    if pair is not None and apart is not None:
        worst = max(_GRAVITY(skewed.get(node)) for node in pair)
        if _GRAVITY(apart) > worst:
            ahead = view.seen[pair[1]].ahead - view.seen[pair[0]].ahead
            yield _finding("skew_between", apart, ahead, f"node {pair[0]}", pair[1])


def _severity(skew: float) -> Severity | None:
    if skew > ERROR_S:
        return Severity.error
    return Severity.warning if skew > WARN_S else None


_GRAVITY = [None, Severity.warning, Severity.error].index


def _furthest(offsets: Mapping[NodeName, Offset]) -> tuple[NodeName, NodeName] | None:
    """Name the nodes whose clocks are furthest behind and ahead; None where there is but one."""
    order = sorted(offsets, key=lambda node: offsets[node].ahead)
    return (order[0], order[-1]) if len(order) > 1 else None


def _finding(
    code: str, severity: Severity, ahead: float, reference: str, node: NodeName | None = None
) -> Finding:
    direction = "ahead of" if ahead > 0 else "behind"
    whose = "its clock" if node else "the clock of shardctl's machine"
    return RULES.finding(
        code,
        severity,
        node=node,
        whose=whose,
        skew=abs(ahead) * 1000,
        direction=direction,
        reference=reference,
    )


CHECK = Check(RULES, "clocks of nodes and shardctl differ by less than 50 ms", judge, look)
