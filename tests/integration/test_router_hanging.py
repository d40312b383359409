"""Scatters on servers that hang, and many scatters at once on small pools: nobody waits in vain."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.router import DeadlinePassed, NoConnection, PoolSettings, ShardedDatabase
from shardctl.router.scatter import CHUNK
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.routed import backends, fill, processes, stopping
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Face, Open


def stop_once(fleet: Fleet, node: str, stop: Callable[[int], None]) -> Callable[[Any], None]:
    """Give what stops, with the first row, the process that sends a node's rows."""
    done: list[int] = []

    def each(_: Any) -> None:
        if not done:
            done.extend(backends(fleet, node))
            for pid in done:
                stop(pid)

    return each


def full(db: Face) -> bool:
    """Tell whether every pool has all of its connections."""
    return all(one["pool_size"] == one["pool_available"] for one in db.stats().pools.values())


@pytest.mark.parametrize("order", ["id", None])
def test_a_node_that_hangs_while_its_rows_come_holds_nobody_up_after_the_deadline(
    fleet_routed: Fleet, router: Open, order: str | None
) -> None:
    fill(fleet_routed, CHUNK)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    began = time.monotonic()
    with stopping() as stop:
        with pytest.raises(DeadlinePassed, match="shards 4-7 did not answer"):
            db.scatter(
                "id", "photos", order_by=order, deadline=1, each=stop_once(fleet_routed, "b", stop)
            )
        assert time.monotonic() - began < 2
        # What did not answer is not given to the next one, though the process still hangs.
        assert db.insert("photos", 6, {"user_id": 6}) > 0
        assert db.insert("photos", 1, {"user_id": 1}) > 0
        wait_for(lambda: full(db))
    assert len(db.scatter("id", "photos", deadline=20).rows) == 8 * CHUNK + 2


def test_a_server_that_is_stopped_altogether_holds_nobody_up_either(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, CHUNK)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    with stopping() as stop:

        def each(_: Any) -> None:
            for pid in stoppable:
                stop(pid)
            stoppable.clear()

        db.select("id", "photos", 6, limit=1)
        stoppable = processes(fleet_routed.servers["b"])
        began = time.monotonic()
        with pytest.raises(DeadlinePassed, match="shards 4-7 did not answer"):
            db.scatter("id", "photos", order_by="id", deadline=1, each=each)
        assert time.monotonic() - began < 2
        assert db.insert("photos", 1, {"user_id": 1}) > 0
        found = db.scatter("user_id", "photos", limit=9, deadline=0.5, partial=True)
        assert (len(found.rows), set(found.missing)) == (9, {4, 5, 6, 7})
        health = db.check(2)
        assert (health["a"].error, bool(health["b"].error)) == (None, True)
    wait_for(lambda: full(db), seconds=40)
    assert len(db.scatter("id", "photos", deadline=20).rows) == 8 * CHUNK + 1


def test_rows_of_the_others_are_handed_out_where_partial_results_are_wanted(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, 2 * CHUNK)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    with stopping() as stop:
        each = stop_once(fleet_routed, "b", stop)
        found = db.scatter("user_id", "photos", deadline=1.5, partial=True, each=each)
        assert found.missing.keys() >= {4, 5, 6, 7}
        assert len(found.rows) >= 2 * CHUNK
        wait_for(lambda: full(db))


def test_a_pooler_whose_server_hangs_holds_nobody_up_either(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    with ShardedDatabase(fleet_pooled.topology()) as writing:
        for key in range(8):
            writing.insert("photos", key, {"user_id": key})
    db = router(fleet_pooled.topology(), pool=PoolSettings(max_size=1))
    with stopping() as stop:
        db.select("id", "photos", 6)
        for pid in backends(fleet_pooled, "b"):
            stop(pid)
        began = time.monotonic()
        with pytest.raises(DeadlinePassed, match="shards 4-7"):
            db.scatter("id", "photos", order_by="id", deadline=0.7)
        assert time.monotonic() - began < 2
        # The pooler has given that server up, too.
        assert len(db.scatter("id", "photos", deadline=20).rows) == 8


def test_the_server_is_told_of_the_time_that_is_left_with_every_piece(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, CHUNK)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    db.insert("photos", 6, {"user_id": 6})
    before = backends(fleet_routed, "b")
    rows: list[Any] = []

    def each(row: Any) -> None:
        rows.append(row)
        if len(rows) == 1:
            time.sleep(0.6)  # of the deadline's time

    slow = "pg_sleep(CASE WHEN id = 1 AND user_id = 5 THEN 30 ELSE 0 END) IS NOT NULL"
    with pytest.raises(DeadlinePassed):
        db.scatter("id", "photos", slow, deadline=1, each=each)
    wait_for(lambda: full(db))
    # The server has ended it by itself and in time, so that nobody had to give the connection up.
    assert backends(fleet_routed, "b") == before


def test_scatters_that_need_the_same_connections_do_not_wait_for_each_other(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, CHUNK // 4 + 1)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1, timeout=30))
    found: list[int] = []
    began = time.monotonic()

    def ask(number: int) -> None:
        order = "id" if number % 2 else None
        found.extend(len(db.scatter("id", "photos", order_by=order).rows) for _ in range(3))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert found == [8 * (CHUNK // 4 + 1)] * 48
    assert time.monotonic() - began < 25
    wait_for(lambda: full(db))


def test_a_pool_that_is_always_too_small_says_so_at_once(
    fleet_routed: Fleet, router: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardctl.router.plans.SHARDS_A_STATEMENT", 2)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1, timeout=30))
    began = time.monotonic()
    with pytest.raises(NoConnection, match="2 are needed at once, but `max_size` is 1"):
        db.scatter("id", "photos", order_by="id")
    assert time.monotonic() - began < 10
    assert db.scatter("id", "photos", order_by="id", limit=5).rows == []


def test_a_node_whose_places_are_all_taken_is_left_out_of_partial_results(
    fleet_routed: Fleet,
) -> None:
    fill(fleet_routed, CHUNK // 4 + 1)
    pool = PoolSettings(max_size=1, timeout=1)
    with ShardedDatabase(fleet_routed.topology(), width=1, pool=pool) as db:
        with db.scatter("id", "photos") as first:
            next(iter(first))  # with one node at a time, it holds a connection of node a
            found = db.scatter("user_id", "photos", order_by="id", partial=True)
            assert {shard for (shard,) in found} == {4, 5, 6, 7}
            assert found.missing.keys() == {0, 1, 2, 3}
            assert "none was free within 0.5 s" in found.missing[ShardId(0)]
            with pytest.raises(NoConnection, match="node a"):
                list(db.scatter("id", "photos", order_by="id"))
        assert len(list(db.scatter("id", "photos", order_by="id"))) == 8 * (CHUNK // 4 + 1)
