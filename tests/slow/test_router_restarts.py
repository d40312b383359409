"""Poolers and servers that restart under the router: idle connections that ended fail no call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.router import PoolSettings
from tests.fixtures.fleets.routed import FACES, backends
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Face, Open

SIZE = 4
POOL = PoolSettings(min_size=SIZE, max_size=SIZE, timeout=20)


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


def test_idle_connections_that_a_server_ends_cost_no_call(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology(), pool=POOL)
    db.scatter("id", "photos", limit=1)
    full(db)
    for node in ("a", "b"):
        fleet_routed.query(
            node,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            f" WHERE usename = '{fleet_routed.role}'",
        )
    calls: list[Callable[[], object]] = [
        lambda: db.insert("photos", 6, {"user_id": 6}),
        lambda: db.insert("photos", 1, {"user_id": 1}),
    ] * SIZE
    assert failed(calls) == []
    assert len(db.select("id", "photos", 6)) == len(db.select("id", "photos", 1)) == SIZE


def test_a_write_that_is_broken_off_fails_and_is_not_done_again(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    db.insert("photos", 1, {"user_id": 1, "score": 0})
    holding = fleet_routed.connect("a", autocommit=False)
    holding.execute("LOCK TABLE shard1.photos")
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(db.insert, "photos", 1, {"user_id": 1})
        wait_for(lambda: fleet_routed.query("a", "SELECT 1 FROM pg_locks WHERE NOT granted"))
        for pid in backends(fleet_routed, "a"):
            fleet_routed.query("a", f"SELECT pg_terminate_backend({pid}, 5000)")
        with pytest.raises(psycopg.OperationalError):
            writing.result()
    holding.close()
    assert db.insert("photos", 1, {"user_id": 1, "score": 1}) > 0
    assert sorted(db.select("score", "photos", 1)) == [(0,), (1,)]
    assert db.stats().repeated == 0
