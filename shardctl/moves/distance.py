"""How far shardctl is from those whom a cutover asks one after the other, while clients wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts import ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.topology.model import Node

NEAR_MS = 1.0
"""A shorter round trip counts as none: what was measured of a cutover has those in it."""
_SAMPLES = (3, 15)
"""At least so many, and so many at most, as long as none of them is near."""
_LASTING_S = 0.5
"""After which only the least number of samples is taken."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Round trips in ms, to source and target and the furthest pooler; 0 is near.

    >>> Distance.of(source=100.2, target=0.3)
    Distance(source=100.2, target=0.0, pooler=0.0)
    """

    source: float = 0.0
    target: float = 0.0
    pooler: float = 0.0

    @classmethod
    def of(cls, *, source: float = 0.0, target: float = 0.0, pooler: float = 0.0) -> Distance:
        """Take what was measured, in ms."""
        return cls(*(0.0 if ms < NEAR_MS else ms for ms in (source, target, pooler)))


def shortest_ms(ask: Callable[[], object]) -> float:
    """Ask a few times something that takes one round trip, and give the quickest, in ms.

    On a busy machine most answers come late, from whoever is near, too.
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


def of_machine(node: Node) -> float:
    """Measure the way to a node's machine, where its server may not run yet, in ms."""
    # Sessions resolve its name once, and so does this.
    address = next(iter(ports.addresses(node.host)), node.host)
    return shortest_ms(lambda: ports.knock(address, node.port))
