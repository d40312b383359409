"""What one user of a router does or meets is no business of the others."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.router import AsyncShardedDatabase, ShardMoved
from tests.fixtures.fleets.routed import away
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def sleeping(fleet: Fleet) -> list[Any]:
    """List who runs pg_sleep on node a."""
    # It does not find itself.
    return fleet.query("a", "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)'")


def test_a_child_that_ends_cancels_no_statement_of_its_parents_tasks(fleet_routed: Fleet) -> None:
    async def work() -> Any:
        async with (
            AsyncShardedDatabase(fleet_routed.topology()) as db,
            db.shard(1) as connection,
        ):
            asking = asyncio.create_task(connection.execute("SELECT pg_sleep(2)"))
            await asyncio.to_thread(wait_for, lambda: sleeping(fleet_routed))
            connection.process += 1  # type: ignore[attr-defined]  # as in a child
            await connection.cancel_safe()
            connection.process -= 1  # type: ignore[attr-defined]
            return await (await asking).fetchall()

    assert asyncio.run(work()) == [("",)]


def test_the_fence_is_told_through_a_group_of_tasks(fleet_routed: Fleet) -> None:
    async def work() -> None:
        async with AsyncShardedDatabase(fleet_routed.topology()) as db, db.shard(1) as connection:
            fenced = away(fleet_routed, 1, "a")
            fenced.__enter__()
            back = threading.Timer(0.3, fenced.__exit__, (None, None, None))
            back.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.execute("INSERT INTO photos VALUES (1, 1)"))

    with pytest.raises(ShardMoved):
        asyncio.run(work())
