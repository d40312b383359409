"""asyncpg's pool needs `statement_cache_size=0` and, with aliases of shards, `reset`."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from tests.slow.drivers import common


async def nothing(_: object) -> None:
    """Send nothing when a connection is released."""


class Asyncpg:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pools: dict[str, Any] = {}

    def insert(self, alias: str, statement: str, token: int) -> None:
        self._loop.run_until_complete(self._execute(alias, statement.format("$1"), token))

    def owner(self, alias: str) -> str:
        return str(self._loop.run_until_complete(self._execute(alias, common.OWNER))[0][0])

    def code(self, error: Exception) -> str | None:
        return getattr(error, "sqlstate", None)

    async def _execute(self, alias: str, statement: str, *given: int) -> Any:
        if alias not in self._pools:
            self._pools[alias] = await asyncpg.create_pool(
                host=common.HOST,
                port=int(common.PORT),
                user=common.USER,
                database=alias,
                min_size=1,
                max_size=2,
                statement_cache_size=0,
                reset=nothing,
            )
        async with self._pools[alias].acquire() as connection:
            return await connection.fetch(statement, *given)


common.run(Asyncpg())
