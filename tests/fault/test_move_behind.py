"""Schemas that are made under moved names while shardctl is killed behind its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

LIVE = "SELECT nspname::text FROM pg_namespace WHERE nspname IN ('shard2', 'shard3') ORDER BY 1"
BEHIND = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%__behind_%'"


def test_the_guard_warns_of_each_and_lifts_the_fence_though_its_client_is_gone(
    fleet_points: MovingFleet,
) -> None:
    mover = fleet_points.mover("start", "span drain begin")
    mover.at("span drain begin")
    for schema in ("shard2", "shard3"):
        fleet_points.ask("a", f"CREATE SCHEMA {schema}")
    mover.kill()
    wait_for(lambda: fleet_points.state() == "undone")
    assert fleet_points.ask("a", BEHIND) == [(2,)]
    assert fleet_points.ask("a", LIVE) == [("shard2",), ("shard3",)]
    assert fleet_points.ask("a", "SELECT count(*) FROM pg_tables WHERE schemaname = 'shard2'") != [
        (0,)
    ]
