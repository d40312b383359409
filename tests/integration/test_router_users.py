"""What one user of a router does or meets is no business of the others."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.types.numeric import FloatLoader

from shardctl.router import AsyncShardedDatabase, PoolSettings, ShardedDatabase, ShardMoved
from shardctl.router.concurrency import _THREADS
from tests.fixtures.fleets.routed import away
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

ONE = PoolSettings(max_size=1)


def sleeping(fleet: Fleet) -> list[Any]:
    """List who runs pg_sleep on node a."""
    # It does not find itself.
    return fleet.query("a", "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)'")


def test_types_that_a_thread_registers_go_with_its_transaction(fleet_routed: Fleet) -> None:
    with ShardedDatabase(fleet_routed.topology(), pool=ONE) as db:
        db.insert("photos", 1, {"user_id": 1, "score": 1})
        with db.shard(1) as connection:
            connection.adapters.register_loader("numeric", FloatLoader)
            connection.prepared_max = 0
            connection.add_notice_handler(lambda _: None)
            assert isinstance(connection.execute("SELECT 1.0").fetchall()[0][0], float)
        with db.shard(1) as connection:
            ((score,),) = connection.execute("SELECT score FROM photos").fetchall()
            assert (connection.prepared_max, connection._notice_handlers) == (100, [])
        assert isinstance(score, Decimal)


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


def test_calls_that_hang_elsewhere_hold_up_no_call_that_is_done(fleet_routed: Fleet) -> None:
    go_on = threading.Event()
    with ShardedDatabase(fleet_routed.topology()) as db:
        busy = [db._workers._threads.submit(go_on.wait, 30) for _ in range(_THREADS)]
        try:
            assert db.scatter("id", "photos", limit=1) == []
            assert not any(future.done() for future in busy)
        finally:
            go_on.set()
