"""The round trips from shardctl to the nodes and poolers that a cutover asks in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts import ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.topology.model import Node, Pooler

NEAR_MS = 1.0
"""A shorter round trip counts as 0: the constants in `prediction` include those."""
_SAMPLES = (3, 15)
"""The least and the most samples, unless one is shorter than NEAR_MS."""
_LASTING_S = 0.5
"""After this time only the least number of samples is taken."""


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trips in ms, to source, target and the slowest pooler; 0 is local.

    >>> RoundTrips.of(source=100.2, target=0.3)
    RoundTrips(source=100.2, target=0.0, pooler=0.0)
    """

    source: float = 0.0
    target: float = 0.0
    pooler: float = 0.0

    @classmethod
    def of(cls, *, source: float = 0.0, target: float = 0.0, pooler: float = 0.0) -> RoundTrips:
        """Make it from measured round trips, in ms."""
        return cls(*(0.0 if ms < NEAR_MS else ms for ms in (source, target, pooler)))


def shortest_ms(ask: Callable[[], object]) -> float:
    """Call `ask`, which takes one round trip, a few times; return the shortest time, in ms.

    On a busy machine most answers come late, even from a local server.
    """
    took: list[float] = []
    least, most = _SAMPLES
    until = time.monotonic() + _LASTING_S
    while len(took) < least or (len(took) < most and time.monotonic() < until):
        began = time.monotonic()
        ask()
        took.append((time.monotonic() - began) * 1000)
        if took[-1] < NEAR_MS:
            break
    return min(took)


def of_machine(node: Node | Pooler) -> float:
    """Measure the round trip to a node's or a pooler's machine, in ms; its server need not run."""
    # Resolve the name once, as sessions do.
    address = next(iter(ports.addresses(node.host)), node.host)
    return shortest_ms(lambda: ports.knock(address, node.port))
