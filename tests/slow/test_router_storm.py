"""Clients of the router who give up while shards move: every connection comes back."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.router import AsyncShardedDatabase, DeadlinePassed, PoolSettings, ShardMoved
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

USERS, EACH, CLIENTS = 64, 5, 20
PER_USER = 100
"""Ids that a user may have: those of user 7 begin with 700."""
POOL = PoolSettings(max_size=10, timeout=30)
FIELDS = ["id", "user_id"]
ROWS = (
    f"INSERT INTO shard{{0}}.photos (id, user_id) SELECT u * {PER_USER} + n, u"
    f" FROM generate_series({{0}}, {USERS - 1}, 8) AS u, generate_series(1, {EACH}) AS n"
)


PASSED = (TimeoutError, DeadlinePassed, ShardMoved)
"""What a client of a storm may meet: its own time, and a transaction that met a move."""


class Storm:
    """Clients that let `asyncio.timeout` end what they began, and what they met."""

    def __init__(self, db: AsyncShardedDatabase) -> None:
        self.over = False
        self.ended, self.given_up = 0, 0
        self.db = db
        self._calls = [self._select, self._scatter, self._transaction]

    async def serves(self) -> None:
        """Wait until clients have been served again."""
        aim = self.ended + 100
        await asyncio.to_thread(wait_for, lambda: self.ended > aim)

    async def client(self, number: int) -> None:
        drawn = random.Random(number)  # noqa: S311  # no secret
        while not self.over:
            try:
                async with asyncio.timeout(drawn.uniform(0.002, 0.15 if self.ended else 0.3)):
                    await drawn.choice(self._calls)(drawn, drawn.randrange(USERS))
            except PASSED:
                self.given_up += 1
            else:
                self.ended += 1

    def missing(self) -> bool:
        """Tell whether pools have given out connections, or calls wait for one."""
        pools = self.db.stats().pools.values()
        return any(
            one["pool_size"] - one["pool_available"] + one["requests_waiting"] for one in pools
        )

    async def _select(self, _: random.Random, user: int) -> None:
        fields: list[Any] = [*FIELDS, sql.SQL("pg_sleep(0.01)")]
        rows = await self.db.select(fields, "photos", user, "user_id = %s", [user])
        assert [(row[0] // PER_USER, row[1]) for row in rows] == [(user, user)] * EACH

    async def _scatter(self, drawn: random.Random, _: int) -> None:
        most = drawn.randrange(1, USERS * EACH)
        rows = await self.db.scatter(FIELDS, "photos", order_by="id", limit=most)
        assert [number // PER_USER for number, _ in rows] == [user for _, user in rows]
        assert len(rows) == most

    async def _transaction(self, _: random.Random, user: int) -> None:
        async with self.db.shard(user) as connection:
            found = await connection.execute("SELECT id FROM photos WHERE user_id = %s", [user])
            assert {one // PER_USER for (one,) in await found.fetchall()} == {user}


async def blow(lab: Lab) -> None:
    """Move shards while all clients work."""
    async with AsyncShardedDatabase(lab.topology, pool=POOL) as db:
        storm = Storm(db)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(storm.client(number))
            await storm.serves()
            await asyncio.to_thread(lab.move, [2, 3], "c", max_pause_s=30.0)
            await storm.serves()
            storm.over = True
        assert storm.given_up > 0
        await asyncio.to_thread(wait_for, lambda: not storm.missing())


def test_every_connection_comes_back_while_shards_move(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("TRUNCATE shard2.photos, shard3.photos")
    for shard in range(8):
        with fleet_own.connect("a" if shard < 4 else "b") as session:
            session.execute(ROWS.format(shard).encode())
    asyncio.run(blow(fleet_own))
    assert fleet_own.leads("shard2") == "c"
