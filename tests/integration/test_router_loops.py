"""The asynchronous face in another event loop; and closing while clients wait."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardctl.router import (
    AnotherLoop,
    AsyncShardedDatabase,
    Closed,
    NoConnection,
    PoolSettings,
    ShardedDatabase,
)
from shardctl.topology.model import NodeName
from tests.fixtures.fleets.routed import backends
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_a_loop_that_ended_with_the_database_open_leaves_nothing_behind(
    fleet_routed: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest keeps what is logged, and with an error the connection that was being made.
    caplog.set_level(logging.ERROR, "psycopg.pool")
    db = AsyncShardedDatabase(fleet_routed.topology())

    async def work() -> None:
        await db.select("id", "photos", 1)

    asyncio.run(work())
    with pytest.raises(AnotherLoop):
        asyncio.run(work())
    asyncio.run(db.close())
    gc.collect()
    wait_for(lambda: backends(fleet_routed, "a") == [])
    with pytest.raises(Closed):
        asyncio.run(work())


def test_who_waits_for_a_connection_when_the_database_is_closed_hears_of_it(
    fleet_routed: Fleet,
) -> None:
    lock = "LOCK TABLE shard1.photos"
    pool = PoolSettings(max_size=1)
    with fleet_routed.connect("a", autocommit=False) as session, ThreadPoolExecutor(2) as clients:
        session.execute(lock)
        db = ShardedDatabase(fleet_routed.topology(), pool=pool)
        using = clients.submit(db.select, "id", "photos", 1)
        wait_for(lambda: fleet_routed.query("a", "SELECT 1 FROM pg_locks WHERE NOT granted"))
        waiting = clients.submit(db.select, "id", "photos", 1)
        wait_for(lambda: db.stats().pools[NodeName("a")]["requests_waiting"])
        db.close()
        with pytest.raises(Closed):
            waiting.result(20)
        session.rollback()
        assert using.result(20) == []
    wait_for(lambda: backends(fleet_routed, "a") == [])


def test_a_loop_ends_although_a_pool_is_connecting_to_a_server_that_says_nothing(
    fleet_routed: Fleet,
) -> None:
    topology = fleet_routed.topology()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = replace(topology.nodes[NodeName("a")], port=silent.getsockname()[1])
        nodes = {**topology.nodes, NodeName("a"): node}
        db = AsyncShardedDatabase(replace(topology, nodes=nodes), pool=PoolSettings(timeout=0.5))

        async def work() -> None:
            with pytest.raises(NoConnection):
                await db.select("id", "photos", 1)

        ended = threading.Thread(target=asyncio.run, args=[work()], daemon=True)
        ended.start()
        ended.join(120)
        assert not ended.is_alive()
