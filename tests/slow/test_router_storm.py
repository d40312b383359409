"""Clients of the router who give up: every connection comes back, and every row is its user's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shardctl.router import AsyncShardedDatabase, ShardedDatabase
from tests.fixtures import storms
from tests.fixtures.storms import POOL, Storm

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

SECONDS = 2.5


def seed(fleet: Fleet, storm: Storm) -> None:
    storms.seed(lambda shard, text: fleet.execute("a" if shard < 4 else "b", text), storm)


def test_tasks_that_are_cancelled_give_every_connection_back(fleet_routed: Fleet) -> None:
    storm = Storm(SECONDS)
    seed(fleet_routed, storm)

    async def work() -> None:
        async with AsyncShardedDatabase(fleet_routed.topology(), pool=POOL) as db:
            await storms.Tasks(db, storm.begin()).run()
            assert await storms.missing_after_tasks(db) == {}
            await storms.take_all_in_a_task(db)

    asyncio.run(work())
    assert storm.met() == ([], [], True), (storm.ended, storm.given_up)


def test_threads_that_give_up_give_every_connection_back(fleet_routed: Fleet) -> None:
    storm = Storm(SECONDS)
    seed(fleet_routed, storm)
    with ShardedDatabase(fleet_routed.topology(), pool=POOL) as db:
        storms.Threads(db, storm.begin()).run()
        assert storms.missing_after(db) == {}
        storms.take_all(db)
    assert storm.met() == ([], [], True), (storm.ended, storm.given_up)
