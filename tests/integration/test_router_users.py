"""What one user of a router does or meets is no business of the others."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from shardctl.router import AsyncShardedDatabase, ShardMoved
from tests.fixtures.fleets.routed import away

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_the_fence_is_told_through_a_group_of_tasks(fleet_routed: Fleet) -> None:
    async def work() -> None:
        async with AsyncShardedDatabase(fleet_routed.topology()) as db, db.shard(1) as connection:
            fenced = away(fleet_routed, 1)
            fenced.__enter__()
            back = threading.Timer(0.3, fenced.__exit__, (None, None, None))
            back.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.execute("INSERT INTO photos VALUES (1, 1)"))

    with pytest.raises(ShardMoved):
        asyncio.run(work())
