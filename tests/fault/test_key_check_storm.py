"""Many clients write into wrong shards through a pooler for half a minute, while shards move."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import errors

from shardctl.fanout import Silent
from shardctl.provision import fleet as provision
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    import psycopg

    from tests.fixtures.moves.spares import MovedFleet

pytestmark = pytest.mark.fault

CLIENTS = 16
SECONDS = 30.0
SHARDS = 8


class Client:
    """Writes rows of random keys into random shards until it is stopped."""

    def __init__(self, fleet: MovedFleet, seed: int, stop: threading.Event) -> None:
        self.fleet = fleet
        self.stop = stop
        self.random = random.Random(seed)  # noqa: S311  # a load, no secret
        self.ids: set[int] = set()
        self.seen: Counter[tuple[bool, bool]] = Counter()
        """How often each (the key is the shard's, the write was accepted)."""

    def run(self) -> None:
        while not self.stop.is_set():
            shard = self.random.randrange(SHARDS)
            with self.fleet.pg_bouncer.connect(f"shard{shard}") as session:
                for _ in range(20):
                    key = self.random.choice([shard, self.random.randrange(-1000, 1000)])
                    self.write(session, shard, key)

    def write(self, session: psycopg.Connection[Any], shard: int, key: int) -> None:
        try:
            [(number,)] = session.execute(
                "INSERT INTO photos (user_id) VALUES (%s) RETURNING id", (key,)
            ).fetchall()
        except errors.CheckViolation:
            self.seen[key % SHARDS == shard, False] += 1
        else:
            self.ids.add(number)
            self.seen[key % SHARDS == shard, True] += 1


def test_every_wrong_write_is_refused_and_every_right_one_is_kept(
    fleet_spares: MovedFleet,
) -> None:
    fleet_spares.migration("0002_check.sql", "-- shardctl: key photos.user_id check\n")
    topology = fleet_spares.topology()
    provision.carry_out(provision.plan_migrate(topology), provision.Options(), Silent())
    stop = threading.Event()
    clients = [Client(fleet_spares, seed, stop) for seed in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client.run) for client in clients]
        try:
            stop.wait(SECONDS / 3)
            fleet_spares.move([2, 3], "c")
            stop.wait(SECONDS / 3)
        finally:
            stop.set()
        for one in running:
            one.result()
    seen = sum((client.seen for client in clients), Counter[tuple[bool, bool]]())
    assert seen[False, True] == seen[True, False] == 0
    assert seen[True, True] > 1000
    assert seen[False, False] > 1000
    owner = {**dict.fromkeys((0, 1), "a"), **dict.fromkeys((2, 3), "c")}
    there = [
        number
        for shard in range(SHARDS)
        for (number,) in fleet_spares.query(
            owner.get(shard, "b"), f"SELECT id FROM shard{shard}.photos"
        )
    ]
    assert len(there) == len(set(there))
    assert set(there) == set().union(*(client.ids for client in clients))
    valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE conname = 'shardctl_key'"
    assert fleet_spares.query("c", valid) == [(True,)]
    found = verify(fleet_spares, "ids", "structure", "migrations", deep=True)
    assert told(f for f in found if f.severity == "error") == []
