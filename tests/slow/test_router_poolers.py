"""The router before poolers that restart, or refuse clients after a pause."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from shardctl.pgbouncer import serving
from shardctl.router import PoolSettings
from tests.fixtures.fleets.routed import FACES
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.straggler import straggling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Face, Open


SIZE = 2
POOL = PoolSettings(min_size=SIZE, max_size=SIZE, timeout=20)
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


def test_through_a_pooler_statements_are_never_prepared(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology())
    for _ in range(12):
        db.insert("photos", 6, {"user_id": 6})
    assert len(db.select("id", "photos", 6)) == 12
    assert db.within(6, "SELECT count(*) FROM photos") == [(12,)]
    assert len(db.scatter("id", "photos", order_by="id", limit=20)) == 12
    with fleet_pooled.pg_bouncer.console() as console:
        used = {row["database"] for row in console.execute("SHOW CLIENTS")}
    assert {f"{fleet_pooled.database}_a", f"{fleet_pooled.database}_b"} <= used
    direct = router(fleet_pooled.topology(), through="nodes")
    assert len(direct.select("id", "photos", 6)) == 12


def full(db: Face) -> None:
    """Wait until every pool has all of its connections."""
    wait_for(lambda: [p["pool_available"] for p in db.stats().pools.values()] == [SIZE] * 2)


def failed(calls: list[Callable[[], object]]) -> list[str]:
    """Run calls one after the other; give what went wrong."""
    met = []
    for call in calls:
        try:
            call()
        except psycopg.Error as error:
            met.append(str(error))
    return met


@FACES
def test_a_pooler_that_restarts_costs_no_call(fleet_pooled: PooledFleet, router: Open) -> None:
    db = router(fleet_pooled.topology(), pool=POOL)
    db.scatter("id", "photos", limit=1)
    full(db)
    fleet_pooled.pg_bouncer.stop()
    fleet_pooled.pg_bouncer.start()
    calls: list[Callable[[], object]] = [
        lambda: db.insert("photos", 6, {"user_id": 6}),
        lambda: db.select("id", "photos", 6),
        lambda: db.within(6, "SELECT 1"),
        lambda: db.scatter("id", "photos", order_by="id", limit=9),
        lambda: db.insert("photos", 1, {"user_id": 1}),
    ] * SIZE
    assert failed(calls) == []
    assert len(db.select("id", "photos", 6)) == len(db.select("id", "photos", 1)) == SIZE
