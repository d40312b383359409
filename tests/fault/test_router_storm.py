"""Clients of the router who give up while shards move."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from shardctl.router import AsyncShardedDatabase, DeadlinePassed, PoolSettings, ShardMoved
from tests.fixtures.moves.stopping import finish
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

USERS, EACH, CLIENTS = 64, 5, 20
PER_USER = 100
"""Ids that a user may have: those of user 7 begin with 700."""
POOL = PoolSettings(max_size=10, timeout=30)
SHORTEST_S, LONGEST_S = 0.002, 0.15
"""After which clients give up."""
FIELDS = ["id", "token"]


class OnPurposeError(Exception):
    """What a client raises in the middle of a transaction."""


PASSED = (TimeoutError, DeadlinePassed, ShardMoved, OnPurposeError)
"""What a client of a storm may meet: its own time, and a transaction that met a move."""


class Storm:
    """Clients that let `asyncio.timeout` end what they began, and what they met."""

    def __init__(self, fleet: MovingFleet) -> None:
        self.over = False
        self.ended, self.given_up = 0, 0
        self.wrong: list[Any] = []
        """Errors, and rows that a client got and that are another user's."""
        self._fleet = fleet
        self._calls = [self._select, self._many, self._scatter, self._transaction, self._group]
        for shard in range(8):
            fleet.execute(
                "a" if shard < 4 else "b",
                f"INSERT INTO shard{shard}.writes (id, token) SELECT u * {PER_USER} + n, u"
                f" FROM generate_series({shard}, {USERS - 1}, 8) u, generate_series(1, {EACH}) n",
            )

    @contextlib.contextmanager
    def blows(self) -> Iterator[None]:
        """Let all clients work during the block; every connection has come back at its end."""
        with ThreadPoolExecutor(1) as beside:
            clients = beside.submit(asyncio.run, self._run())
            try:
                self.serves()
                yield
                self.serves()
            finally:
                self.over = True
            clients.result()
        assert self.wrong == []
        assert self.given_up > 0

    def serves(self) -> None:
        """Wait until clients have been served again."""
        aim = self.ended + 100
        wait_for(lambda: self.ended > aim or self.wrong)

    async def _run(self) -> None:
        async with AsyncShardedDatabase(self._fleet.topology(), pool=POOL) as self.db:
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(self._client(random.Random(number)))  # noqa: S311  # no secret
            await asyncio.to_thread(wait_for, lambda: not self._missing())
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(POOL.max_size):
                    connection = await stack.enter_async_context(self.db.shard(0))
                    await connection.execute("SELECT 1")

    def _missing(self) -> Counter[str]:
        """Count the connections that pools have given out, and the calls that wait for one."""
        pools = self.db.stats().pools.items()
        return +Counter({
            str(node): one["pool_size"] - one["pool_available"] + one["requests_waiting"]
            for node, one in pools
        })  # fmt: skip

    async def _client(self, drawn: random.Random) -> None:
        while not self.over and not self.wrong:
            try:
                async with asyncio.timeout(
                    drawn.uniform(SHORTEST_S, LONGEST_S * (1 + (not self.ended)))
                ):
                    await drawn.choice(self._calls)(drawn, drawn.randrange(USERS))
            except PASSED:
                self.given_up += 1
            except Exception as error:  # noqa: BLE001  # the test tells of it
                self.wrong.append(error)
            else:
                self.ended += 1

    def _look(self, user: int, rows: Sequence[Any]) -> None:
        """Look at rows of an id and its user, all of which should be this user's."""
        self.wrong += [
            (user, row) for row in rows if row != (row[0], user) or row[0] // PER_USER != user
        ]

    async def _select(self, _: random.Random, user: int) -> None:
        fields: list[Any] = [*FIELDS, sql.SQL("pg_sleep(0.01)")]
        rows = await self.db.select(fields, "writes", user, "token = %s", [user])
        self._look(user, [row[:2] for row in rows])
        assert len(rows) == EACH

    async def _many(self, drawn: random.Random, _: int) -> None:
        users = [drawn.randrange(USERS) for _ in range(12)]
        wanted = {user: user * PER_USER + drawn.randrange(1, EACH + 1) for user in users}
        rows = await self.db.select_keys(
            FIELDS, "writes", wanted, "id = ANY(%s)", [list(wanted.values())], key_field="token",
        )  # fmt: skip
        assert {user: number for number, user in rows} == wanted

    async def _scatter(self, drawn: random.Random, _: int) -> None:
        most = drawn.randrange(1, USERS * EACH)
        rows = await self.db.scatter(FIELDS, "writes", order_by="id", limit=most)
        for number, user in rows:
            self._look(user, [(number, user)])
        assert len(rows) == most

    async def _transaction(self, drawn: random.Random, user: int) -> None:
        async with self.db.shard(user) as connection:
            asked = "SELECT id, token FROM writes WHERE token = %s"
            self._look(user, await (await connection.execute(asked, [user])).fetchall())
            if drawn.random() < 0.3:
                raise OnPurposeError

    async def _group(self, drawn: random.Random, user: int) -> None:
        """Let the first that fails cancel the others."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._select(drawn, (user + n) % USERS)) for n in range(4)]
            if drawn.random() < 0.5:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()


def test_every_connection_comes_back_while_shards_move(fleet_points: MovingFleet) -> None:
    with Storm(fleet_points).blows():
        mover = fleet_points.mover("start")
        if mover.end() != 0:
            finish(fleet_points, "resume")
    assert fleet_points.state() == "done", mover.said
