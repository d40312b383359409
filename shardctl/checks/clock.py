"""Clocks that differ from the one here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, WARNING, Check, Rule, Rules, Severity
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.checks.check import Finding, Place, View
    from shardctl.hosts.host import Host
    from shardctl.postgres.connection import Connection

WARN_S = 0.05
ERROR_S = 0.5
RULES = Rules(
    "clock",
    {
        "skew": Rule(
            WARNING + ERROR,
            "its clock is {skew:.0f} ms {direction} the clock of shardctl's machine",
            f"at most {WARN_S * 1000:.0f} ms",
            "synchronise the clocks (chrony, systemd-timesyncd): ids contain the time of the "
            "node's clock; where all nodes differ alike, that of shardctl's machine is wrong",
        )
    },
)

_SAMPLES = 5
_SECONDS = 10.0

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::double precision"


@dataclass(frozen=True, slots=True)
class Offset:
    """Seconds that a node's clock is ahead of the local one, give or take `uncertainty`."""

    ahead: float
    uncertainty: float


def look(place: Place) -> Offset:
    """Ask the node's clock a few times."""
    return of_server(place.connection)


def of_server(session: Connection) -> Offset:
    """Compare a server's clock with the one here; raises psycopg.Error."""
    return _measured(lambda: float(queries.one(session, _CLOCK)[0]))


def of_host(host: Host) -> Offset:
    """Compare a host's clock with the one here; raises CommandFailed, CommandTimedOut."""
    return _measured(lambda: float(host.run(["date", "+%s.%N"], timeout=_SECONDS).stdout))


def _measured(ask: Callable[[], float]) -> Offset:
    """Take the sample with the shortest way, as if the clock had been read half-way."""
    samples = []
    for _ in range(_SAMPLES):
        # A clock that is set in the meantime must not make a round trip short.
        began = time.monotonic()
        there = ask()
        received, half = time.time(), (time.monotonic() - began) / 2
        samples.append(Offset(there - (received - half), half))
    return min(samples, key=lambda sample: sample.uncertainty)


def judge(view: View[Offset]) -> Iterator[Finding]:
    """Find clocks that differ for certain from the one here."""
    for node, offset in view.seen.items():
        certain = abs(offset.ahead) - offset.uncertainty
        if certain > WARN_S:
            yield RULES.finding(
                "skew",
                Severity.error if certain > ERROR_S else Severity.warning,
                node=node,
                skew=abs(offset.ahead) * 1000,
                direction="ahead of" if offset.ahead > 0 else "behind",
            )


CHECK = Check(RULES, "clocks of nodes and shardctl differ by less than 50 ms", judge, look)
