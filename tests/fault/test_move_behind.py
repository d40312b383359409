"""Schemas that are made under moved names while shardctl is killed behind its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

LIVE = "SELECT nspname::text FROM pg_namespace WHERE nspname IN ('shard2', 'shard3') ORDER BY 1"
BEHIND = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%__behind_%'"


def test_the_guard_warns_of_each_and_lifts_the_fence_though_its_client_is_gone(
    moving: MovingFleet,
) -> None:
    mover = moving.mover("start", "span drain begin")
    mover.at("span drain begin")
    for schema in ("shard2", "shard3"):
        moving.ask("a", f"CREATE SCHEMA {schema}")
    mover.kill()
    wait_for(lambda: moving.state() == "undone")
    assert moving.ask("a", BEHIND) == [(2,)]
    assert moving.ask("a", LIVE) == [("shard2",), ("shard3",)]
    assert moving.ask("a", "SELECT count(*) FROM pg_tables WHERE schemaname = 'shard2'") != [(0,)]
