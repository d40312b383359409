"""Clients of a shard's alias that reset their session, beside others of the same alias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.fleets.pooled import PooledFleet

COUNT = b"SELECT count(*) FROM photos"


def wrong_paths(fleet: PooledFleet) -> list[Finding]:
    return [found for found in verify(fleet) if found.code.startswith("search_path")]


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_verify_leaves_the_connections_that_it_asks(fleet_pooled: PooledFleet, mode: str) -> None:
    fleet, pooler = fleet_pooled, fleet_pooled.pg_bouncer
    pooler.admin(f"SET pool_mode = {mode}")
    with pooler.connect("shard5", fleet.role) as client:
        client.execute(COUNT)
        before = {row["ptr"] for row in pooler.admin("SHOW SERVERS")}
        assert wrong_paths(fleet) == []
        # It has logged in to other aliases, too.
        assert {row["ptr"] for row in pooler.admin("SHOW SERVERS")} >= before
        client.execute("RESET ALL")
        assert [found.code for found in wrong_paths(fleet)] == ["search_path"]
