"""What a pooler's aliases cost, from `make bench` on two cores with PgBouncer 1.18."""

from __future__ import annotations

import itertools
import math

MEASURED = ((8, 0.3), (1_000, 2.7), (8_192, 165.0))
"""Numbers of aliases, and how many milliseconds a RELOAD took (rows `RELOAD` of the bench)."""


def reload_ms(aliases: int) -> float:
    """Estimate how long a pooler serves no client while it reloads so many aliases.

    Between and beyond what was measured, along straight lines in logarithms.

    >>> [round(reload_ms(n), 1) for n in (1, 8, 1000, 8192)]
    [0.3, 0.3, 2.7, 165.0]
    >>> round(reload_ms(4000))
    41
    """
    count = max(aliases, MEASURED[0][0])
    pairs = list(itertools.pairwise(MEASURED))
    (few, quick), (many, slow) = next((p for p in pairs if count <= p[1][0]), pairs[-1])
    slope = math.log(slow / quick) / math.log(many / few)
    return float(quick * (count / few) ** slope)
