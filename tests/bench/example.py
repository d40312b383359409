"""How long a page of examples/photos takes, as `make example` serves it."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from tests.bench.measure import Row, limit, milliseconds
from tests.fixtures.photos import reading, started

if TYPE_CHECKING:
    from tests.bench.measure import Scale

CLIENTS = 20
MOST_MS = 50.0


def feed(scale: Scale) -> list[Row]:
    """Time feeds of 20 clients, who each ask for a page a second, on 64 shards of two nodes.

    Clients, page, pooler and servers share the machine. Raises RuntimeError for failed requests.
    """
    with started() as (address, _), reading(address, CLIENTS) as clients:
        time.sleep(scale.of(60, 5))
    if failed := [reason for one in clients for reason in one.failed]:
        raise RuntimeError(f"{len(failed)} requests failed, such as {failed[0]}")
    took = sorted(ms for one in clients for ms in one.took_ms)
    median, slow = statistics.median(took), took[-len(took) // 20]
    return [
        limit(
            f"example: a feed page, {CLIENTS} clients",
            median,
            MOST_MS,
            "ms",
            note=f"{len(took)} pages; one of 20 takes {milliseconds(slow / 1000)} or more",
        )
    ]
