"""A pooler that refuses clients after a pause, because of a request to cancel that came in it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors, sql

from shardctl.pgbouncer import serving
from shardctl.router import AsyncShardedDatabase, NoConnection, PoolSettings
from tests.fixtures.fleets.routed import FACES
from tests.fixtures.servers.postgres import free_ports, wait_for
from tests.fixtures.straggler import cancels_wait, straggling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.pgbouncer.console import Console
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Face, Open

POOL = PoolSettings(min_size=2, max_size=2, timeout=20)
KEY = 1
"""Of a shard on node a, whose alias is paused."""
TEXT = "server login has been failing"


@contextmanager
def spoilt(fleet: PooledFleet) -> Iterator[None]:
    """Pause node a's alias while a statement runs there that its client cancels; then resume.

    PgBouncer connects to the node for the request, and the pause ends that connection.
    """
    pooler, alias = fleet.pg_bouncer, f"{fleet.database}_a"
    with (
        ThreadPoolExecutor(1) as beside,
        pooler.console() as pausing,
        pooler.console() as console,
        straggling(pooler.connect(alias, fleet.role), fleet.connect("a")) as straggler,
    ):
        paused = beside.submit(pausing.execute, f"PAUSE {alias}")
        straggler.cancel(console)
        straggler.end()
        paused.result()
        retry = serving.retry_of(console)
        assert serving.begin(console, [alias], reload=False) == []
        yield
        serving.end(console, retry)
        straggler.join()


def refusals(fleet: PooledFleet) -> int:
    """Count the clients that the pooler has refused so."""
    return fleet.pg_bouncer.log().count(f"pooler error: {TEXT}")


CALLS: dict[str, Callable[[Face], object]] = {
    "select": lambda db: db.select("user_id", "photos", KEY, limit=1),
    "insert": lambda db: db.insert("photos", KEY, {"user_id": KEY}),
    "scatter": lambda db: db.scatter("id", "photos", order_by="id", limit=9),
    "scatter in time": lambda db: db.scatter("id", "photos", limit=1, timeout=20.0),
    "transaction": lambda db: db.within(KEY, "SELECT 1"),
    "check": lambda db: [one.error for one in db.check().values()],
}


@FACES
def test_clients_that_a_pooler_refuses_after_a_pause_wait(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology(), pool=POOL)
    db.insert("photos", KEY, {"user_id": KEY})
    expected = {
        "select": [(KEY,)],
        "transaction": [(1,)],
        "check": [None, None],
    }
    for name, call in CALLS.items():
        before = refusals(fleet_pooled)
        with spoilt(fleet_pooled):
            given = call(db)
        assert given == expected.get(name, given), name
        assert refusals(fleet_pooled) > before, name
    assert len(db.select("id", "photos", KEY)) == 2


def test_the_first_map_is_waited_for_where_a_pooler_refuses(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    pooler = fleet_pooled.pg_bouncer
    source = f"host=127.0.0.1 port={pooler.port} dbname={fleet_pooled.database}_a"
    before = refusals(fleet_pooled)
    with spoilt(fleet_pooled):
        db = router(f"{source} user={fleet_pooled.role}")
    assert refusals(fleet_pooled) > before
    assert db.map_version > 0


def test_the_map_is_read_anew_where_a_pooler_refuses(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology(), pool=POOL)
    before = refusals(fleet_pooled)
    with spoilt(fleet_pooled):
        assert db.read_map() > 0
    assert refusals(fleet_pooled) > before


def test_an_error_that_an_application_raises_in_a_poolers_rules_is_not_repeated(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    fleet_pooled.execute(
        "a",
        """
        CREATE SEQUENCE public.calls;
        GRANT USAGE ON SEQUENCE public.calls TO PUBLIC;
        CREATE FUNCTION public.refuse() RETURNS integer LANGUAGE plpgsql AS $$BEGIN
            PERFORM nextval('public.calls');
            RAISE 'server login has been failing, try again later (server_login_retry)'
                USING ERRCODE = '08P01';
        END$$;
        """,
    )
    db = router(fleet_pooled.topology(), pool=POOL)
    db.insert("photos", KEY, {"user_id": KEY})
    with pytest.raises(errors.ProtocolViolation):
        db.select(sql.SQL("public.refuse()"), "photos", KEY)
    assert fleet_pooled.query("a", "SELECT last_value FROM public.calls") == [(1,)]


def test_a_node_that_is_down_is_waited_for_as_long_as_patience(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    pooler = fleet_pooled.pg_bouncer
    db = router(fleet_pooled.topology(), pool=POOL, patience=1.0)
    db.insert("photos", KEY, {"user_id": KEY})
    wait_for(lambda: [p["pool_available"] for p in db.stats().pools.values()] == [2])
    port = fleet_pooled.servers["a"].port
    text = pooler.databases_file.read_text()
    pooler.databases_file.write_text(text.replace(f"port={port} ", f"port={free_ports(1)[0]} "))
    with closing(pooler.connect(f"{fleet_pooled.database}_a", fleet_pooled.role)) as waiting:
        pooler.admin("RELOAD")
        waiting.pgconn.send_query(b"SELECT 1")
        wait_for(lambda: "closing because: connect failed" in pooler.log())
    before, began = refusals(fleet_pooled), time.monotonic()
    with pytest.raises((psycopg.OperationalError, NoConnection)):
        db.select("id", "photos", KEY)
    assert 1.0 <= time.monotonic() - began < POOL.timeout
    assert refusals(fleet_pooled) > before + 1
    pooler.databases_file.write_text(text)
    pooler.admin("RELOAD")
    pooler.admin(serving.setting(serving.SHORT_S))
    assert len(db.select("id", "photos", KEY)) == 1


def test_a_pause_does_not_wait_for_a_task_whose_request_to_cancel_waits(
    fleet_pooled: PooledFleet,
) -> None:
    alias = f"{fleet_pooled.database}_a"

    async def work(console: Console, pausing: Console, holding: psycopg.Connection[Any]) -> None:
        async with AsyncShardedDatabase(fleet_pooled.topology(), pool=POOL) as db:

            async def transaction() -> None:
                async with db.shard(KEY) as connection:
                    await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(15)")

            holding.execute("SELECT pg_advisory_lock(15)")
            task = asyncio.create_task(transaction())
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            await asyncio.to_thread(wait_for, lambda: fleet_pooled.query("a", waits))
            paused = asyncio.create_task(asyncio.to_thread(pausing.execute, f"PAUSE {alias}"))
            await asyncio.to_thread(wait_for, lambda: console.databases()[alias].paused)
            task.cancel()
            await asyncio.to_thread(wait_for, lambda: cancels_wait(console, alias))
            holding.execute("SELECT pg_advisory_unlock(15)")
            await paused
            assert cancels_wait(console, alias)
            with pytest.raises(asyncio.CancelledError):
                await task
            console.execute(f"RESUME {alias}")

    pooler = fleet_pooled.pg_bouncer
    with pooler.console() as one, pooler.console() as other, fleet_pooled.connect("a") as holding:
        asyncio.run(work(one, other, holding))
