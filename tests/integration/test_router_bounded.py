"""Connections with a limit in time, on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.router.bounded import GRACE_S, AsyncBounded, Bounded, prolong

if TYPE_CHECKING:
    from tests.fixtures.servers.postgres import PgServer

SLOW, QUICK = "SELECT pg_sleep(30)", "SELECT 1"


def conninfo(server: PgServer) -> str:
    return f"host={server.host} port={server.port} user={server.user} dbname=postgres"


def test_what_takes_too_long_is_given_up_and_the_connection_closed(
    two_servers: dict[str, PgServer],
) -> None:
    with Bounded.connect(conninfo(two_servers["a"]), autocommit=True) as connection:
        connection.until = time.monotonic() + 0.2
        assert connection.execute(QUICK).fetchone() == (1,)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer in time"):
            connection.execute(SLOW)
        assert time.monotonic() - began < 2
        assert connection.closed
        with pytest.raises(psycopg.OperationalError, match="closed"):
            connection.execute(QUICK)


def test_tasks_give_up_too(two_servers: dict[str, PgServer]) -> None:
    async def work() -> None:
        where = conninfo(two_servers["a"])
        async with await AsyncBounded.connect(where, autocommit=True) as connection:
            connection.until = time.monotonic() + 0.2
            cursor = await connection.execute(QUICK)
            assert await cursor.fetchone() == (1,)
            with pytest.raises(TimeoutError, match="no answer in time"):
                await connection.execute(SLOW)
            assert connection.closed

    began = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - began < 3


def test_a_connection_whose_time_is_over_may_still_roll_back(
    two_servers: dict[str, PgServer],
) -> None:
    with Bounded.connect(conninfo(two_servers["a"])) as connection:
        connection.execute(QUICK)
        connection.until = time.monotonic() - 5
        prolong(connection)
        assert 0 < connection.until - time.monotonic() <= GRACE_S
        connection.rollback()
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
