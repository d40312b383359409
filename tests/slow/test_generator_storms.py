"""The generator under load, and with thousands of shards."""

from __future__ import annotations

import pytest

from shardctl.ids.layout import Layout
from tests.fixtures.fleets.generators import (
    FOUR_BITS,
    ONE_BIT,
    WIDE,
    Install,
    ask,
    ids,
)
from tests.integration.test_generator import draw_at_once


@pytest.mark.parametrize(
    ("layout", "count"),
    [(Layout(), 50_000), (FOUR_BITS, 6_000), (ONE_BIT, 2_500), (WIDE, 10_000)],
    ids=["default", "4 bits", "1 bit", "wide"],
)
def test_thousands_of_ids_at_once_are_distinct(
    install: Install, layout: Layout, count: int
) -> None:
    draw_at_once(install, layout, count)


def test_thousands_of_wrappers_in_one_session_stay_small(install: Install) -> None:
    schemas = {shard: f"shard{shard}" for shard in range(2000)}
    database = install(schemas=schemas, grant_to=())
    with database.connect() as session:
        for shard, schema in schemas.items():
            assert Layout().decode(ids(session, 1, schema)[0]).shard == shard
        used = ask(session, "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts")
    assert used < 120 * 2**20
