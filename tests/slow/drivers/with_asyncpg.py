"""asyncpg's pool needs `statement_cache_size=0` and, with aliases of shards, `reset`."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from tests.slow.drivers import common

loop = asyncio.new_event_loop()
pools: dict[str, Any] = {}


async def nothing(_: object) -> None:
    """Send nothing when a connection is released."""


async def fetch(alias: str, statement: str, *given: int) -> Any:
    if alias not in pools:
        pools[alias] = await asyncpg.create_pool(
            host=common.HOST,
            port=int(common.PORT),
            user=common.USER,
            database=alias,
            min_size=1,
            max_size=2,
            statement_cache_size=0,
            reset=nothing,
        )
    async with pools[alias].acquire() as connection:
        return await connection.fetch(statement, *given)


common.run(lambda *given: loop.run_until_complete(fetch(*given)), mark="$1", code="sqlstate")
