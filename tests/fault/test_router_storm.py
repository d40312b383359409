"""Clients of the router who give up, for half a minute, and while shards move."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from shardctl.router import AsyncShardedDatabase
from tests.fixtures import storms
from tests.fixtures.moves.stopping import finish
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.storms import POOL, Storm

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.moves.stopping import MovingFleet


pytestmark = pytest.mark.fault

SECONDS = 30.0
AGAIN = 2
"""How often a storm meets what is done again and again, at the least, however long that takes."""


def seed(fleet: Fleet, storm: Storm) -> None:
    storms.seed(lambda shard, text: fleet.execute("a" if shard < 4 else "b", text), storm)


def in_tasks(fleet: Fleet, storm: Storm) -> None:
    async def work() -> None:
        async with AsyncShardedDatabase(fleet.topology(), pool=POOL) as db:
            await storms.Tasks(db, storm).run()
            assert await storms.missing_after_tasks(db) == {}
            await storms.take_all_in_a_task(db)

    asyncio.run(work())


def served(storm: Storm, calls: int = 100) -> None:
    """Wait until clients have been served again."""
    aim = storm.ended.total() + calls
    wait_for(lambda: storm.ended.total() > aim or not storm.blows())


def test_every_connection_comes_back_while_shards_move(fleet_points: MovingFleet) -> None:
    storm = Storm(SECONDS, "writes", "token")
    seed(fleet_points, storm)
    with ThreadPoolExecutor(1) as beside:
        clients = beside.submit(in_tasks, fleet_points, storm.begin())
        mover = fleet_points.mover("start")
        if mover.end() != 0:
            finish(fleet_points, "resume")
        clients.result()
    assert fleet_points.state() == "done", mover.said
    assert storm.met() == ([], [], True), (storm.ended, storm.given_up)


def test_a_pooler_that_restarts_breaks_only_what_is_under_way(fleet_points: MovingFleet) -> None:
    storm = Storm(SECONDS, "writes", "token", breaks=True)
    seed(fleet_points, storm)
    restarts = 0
    with ThreadPoolExecutor(1) as beside, storm.goes_on():
        clients = beside.submit(in_tasks, fleet_points, storm.begin())
        while storm.blows():
            served(storm)
            fleet_points.pg_bouncer.signal(signal.SIGKILL)
            wait_for(lambda: fleet_points.pg_bouncer.server.running() is None)
            fleet_points.pg_bouncer.start()
            restarts += 1
            storm.held = restarts < AGAIN
        clients.result()
    assert storm.met() == ([], [], True), (storm.ended, storm.given_up)
    # A client has one call under way at the most.
    assert len(storm.broken) <= restarts * storms.CLIENTS
