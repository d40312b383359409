"""Many clients write into wrong shards for half a minute, while shards move."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from psycopg import errors

from shardctl.fanout import Silent
from shardctl.provision import fleet as provision
from shardctl.router import AsyncShardedDatabase, ShardedDatabase
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.spares import MovedFleet

    Work = Callable[["Storm"], None]

pytestmark = pytest.mark.fault

CLIENTS = 16
SECONDS = 30.0
SHARDS = 8


class Storm:
    """What clients write, and what came of it; a key is its shard's in half of the writes."""

    def __init__(self, fleet: MovedFleet) -> None:
        self.fleet = fleet
        self.stop = threading.Event()
        self.ids: list[int] = []
        self.seen: list[tuple[bool, bool]] = []
        """Of each write whether the key was the shard's, and whether it was accepted."""

    def pairs(self, seed: int) -> list[tuple[int, int]]:
        """Give shards and keys for a while."""
        chosen = random.Random(seed)  # noqa: S311  # a load, no secret
        shards = [chosen.randrange(SHARDS) for _ in range(20)]
        return [(s, chosen.choice([s, chosen.randrange(-1000, 1000)])) for s in shards]

    def accepted(self, shard: int, key: int, number: int) -> None:
        self.ids.append(number)
        self.seen.append((key % SHARDS == shard, True))

    def refused(self, shard: int, key: int) -> None:
        self.seen.append((key % SHARDS == shard, False))


def by_alias(storm: Storm) -> None:
    def client(seed: int) -> None:
        while not storm.stop.is_set():
            seed += CLIENTS
            for shard, key in storm.pairs(seed):
                with storm.fleet.pg_bouncer.connect(f"shard{shard}") as session:
                    statement = "INSERT INTO photos (user_id) VALUES (%s) RETURNING id"
                    try:
                        [(number,)] = session.execute(statement, (key,)).fetchall()
                    except errors.CheckViolation:
                        storm.refused(shard, key)
                    else:
                        storm.accepted(shard, key, number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for running in [pool.submit(client, seed) for seed in range(CLIENTS)]:
            running.result()


def in_threads(storm: Storm) -> None:
    def client(seed: int) -> None:
        while not storm.stop.is_set():
            seed += CLIENTS
            for shard, key in storm.pairs(seed):
                try:
                    number = db.insert("photos", shard, {"user_id": key})
                except errors.CheckViolation:
                    storm.refused(shard, key)
                else:
                    storm.accepted(shard, key, number)

    with (
        ShardedDatabase(storm.fleet.topology()) as db,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        for running in [pool.submit(client, seed) for seed in range(CLIENTS)]:
            running.result()


def in_tasks(storm: Storm) -> None:
    async def client(db: AsyncShardedDatabase, seed: int) -> None:
        while not storm.stop.is_set():
            seed += CLIENTS
            for shard, key in storm.pairs(seed):
                try:
                    number = await db.insert("photos", shard, {"user_id": key})
                except errors.CheckViolation:
                    storm.refused(shard, key)
                else:
                    storm.accepted(shard, key, number)

    async def work() -> None:
        async with AsyncShardedDatabase(storm.fleet.topology()) as db, asyncio.TaskGroup() as tasks:
            for seed in range(CLIENTS):
                tasks.create_task(client(db, seed))

    asyncio.run(work())


@pytest.mark.parametrize(
    "work", [by_alias, in_threads, in_tasks], ids=["aliases", "threads", "asyncio"]
)
def test_every_wrong_write_is_refused_and_every_right_one_is_kept(
    fleet_spares: MovedFleet, work: Work
) -> None:
    fleet_spares.migration("0002_check.sql", "-- shardctl: key photos.user_id check\n")
    topology = fleet_spares.topology()
    provision.carry_out(provision.plan_migrate(topology), provision.Options(), Silent())
    storm = Storm(fleet_spares)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work, storm)
        try:
            storm.stop.wait(SECONDS / 3)
            fleet_spares.move([2, 3], "c")
            storm.stop.wait(SECONDS / 3)
        finally:
            storm.stop.set()
        running.result()
    seen = Counter(storm.seen)
    assert seen[False, True] == seen[True, False] == 0
    assert seen[True, True] > 200
    assert seen[False, False] > 200
    owner = {**dict.fromkeys((0, 1), "a"), **dict.fromkeys((2, 3), "c")}
    there = [
        number
        for shard in range(SHARDS)
        for (number,) in fleet_spares.query(
            owner.get(shard, "b"), f"SELECT id FROM shard{shard}.photos"
        )
    ]
    assert sorted(there) == sorted(storm.ids)
    valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE conname = 'shardctl_key'"
    assert fleet_spares.query("c", valid) == [(True,)]
    found = verify(fleet_spares, "ids", "structure", "migrations", deep=True)
    assert told(f for f in found if f.severity == "error") == []
