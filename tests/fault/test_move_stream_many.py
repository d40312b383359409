"""A streamed move of two shards with 2,000 tables, from a server with 10,000 more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.preflight import check as preflight
from tests.fault.conftest import EVERY_POINT
from tests.fixtures.moves.beside import assert_clean, planned, run, start

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

MOVED, OTHERS = 1000, 5000
"""Tables in each of two shards that are moved, and in each of two that stay."""


@pytest.mark.skipif(not os.environ.get(EVERY_POINT), reason="takes minutes: `make fault` runs it")
@pytest.mark.timeout(900)
def test_many_tables_are_moved_within_the_budget(fleet_own: Lab) -> None:
    for shard, count in enumerate((OTHERS, OTHERS, MOVED, MOVED)):
        for first in range(0, count, 500):  # each transaction locks what it makes
            made = (
                f"CREATE TABLE shard{shard}.t{number} (id bigint PRIMARY KEY, note text);"
                f"INSERT INTO shard{shard}.t{number} VALUES (1, 'a')"
                for number in range(first, first + 500)
            )
            run(fleet_own, "a", ";".join(made))
    preflight.check(fleet_own.topology, planned(fleet_own), purpose="test")
    change = ";".join(f"UPDATE shard2.t{number} SET note = 'b'" for number in range(MOVED))
    start(fleet_own, follow=lambda: run(fleet_own, "a", change))
    assert fleet_own.copy("b").proof == "compared"
    assert fleet_own.ask("b", "SELECT note FROM shard2.t7") == [("b",)]
    assert_clean(fleet_own, "b")
