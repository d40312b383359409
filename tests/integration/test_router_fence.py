"""Shards that move under an application: found again, and nothing is repeated without need."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.router import AnotherCluster, MapWentBack, ShardMoved
from tests.fixtures.routing import moved_by_hand

if TYPE_CHECKING:
    from tests.fixtures.fleets import Fleet
    from tests.fixtures.routing import Open

ROW = {"id": 1, "user_id": 2, "caption": "new"}


def test_statements_go_to_the_new_owner_and_the_map_is_read_once(
    routed: Fleet, router: Open
) -> None:
    db = router(routed.topology())
    assert db.read_map() == 1
    db.insert("photos", 2, ROW | {"id": 9})
    with moved_by_hand(routed, 2, "a", "b"):
        pass
    assert db.insert("photos", 2, ROW) == 1
    assert db.node_of(2) == "b"
    assert (db.map_version, db.stats().map_reads, db.stats().repeated) == (2, 2, 1)
    assert db.update("photos", 2, {"caption": "newer"}, "id = 1") == 1
    assert db.select("caption", "photos", 2) == [("newer",)]
    assert db.within(2, "SELECT caption FROM photos") == [("newer",)]
    assert (db.stats().map_reads, db.stats().repeated) == (2, 1)


def test_reads_of_many_shards_find_the_one_that_has_moved(routed: Fleet, router: Open) -> None:
    first, second = router(routed.topology()), router(routed.topology())
    for key in range(8):
        first.insert("photos", key, {"id": 100 + key, "user_id": key})
    with moved_by_hand(routed, 2, "a", "b"):
        pass
    routed.execute("b", "INSERT INTO shard2.photos (id, user_id) VALUES (102, 2)")
    wanted = [(key, 100 + key) for key in range(8)]
    assert first.fetch_many("user_id", "photos", wanted) == [(key,) for key in range(8)]
    assert first.stats().repeated == 1
    assert second.scatter("user_id", "photos", order_by="user_id").rows == [(k,) for k in range(8)]
    assert second.scatter("id", "photos", order_by="id", limit=3).rows == [(100,), (101,), (102,)]
    assert second.stats().repeated == 1


def test_a_transaction_is_told_that_its_shard_has_moved_and_may_run_again(
    routed: Fleet, router: Open
) -> None:
    db = router(routed.topology())
    insert = "INSERT INTO photos (id, user_id) VALUES (5, 2)"
    with moved_by_hand(routed, 2, "a", "b"):
        pass
    with pytest.raises(ShardMoved, match="shard 2 has moved from node a to node b"):
        db.within(2, insert)
    db.within(2, insert)
    assert db.select("id", "photos", 2) == [(5,)]


def test_a_function_that_a_transaction_misses_is_the_fence_too(routed: Fleet, router: Open) -> None:
    db = router(routed.topology())
    with moved_by_hand(routed, 2, "a", "b"):
        pass
    with pytest.raises(ShardMoved):
        db.within(2, "SELECT next_id()")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        db.within(3, "SELECT next_idea()")


def test_a_shard_in_the_middle_of_its_move_is_waited_for(routed: Fleet, router: Open) -> None:
    db = router(routed.topology())
    done: list[int] = []
    writer = threading.Thread(target=lambda: done.append(db.insert("photos", 2, ROW)))
    with moved_by_hand(routed, 2, "a", "b"):
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        # Other shards are served meanwhile.
        assert db.insert("photos", 3, {"user_id": 3}) > 0
    writer.join(20)
    assert done == [1]


def test_a_fence_that_stays_is_the_applications_error_after_the_patience(
    routed: Fleet, router: Open
) -> None:
    db = router(routed.topology(), patience=0.2)
    routed.execute("a", "ALTER SCHEMA shard2 RENAME TO shard2__retired_00000000")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.insert("photos", 2, ROW)
    routed.execute("a", "ALTER SCHEMA shard2__retired_00000000 RENAME TO shard2")
    assert db.insert("photos", 2, ROW) == 1


def test_a_map_that_goes_backwards_is_refused(routed: Fleet, router: Open) -> None:
    db = router(routed.topology())
    raised = "UPDATE shardctl.cluster SET map_version = 7"
    routed.execute("b", raised)
    assert db.read_map() == 7
    routed.execute("b", "UPDATE shardctl.cluster SET map_version = 1")
    with pytest.raises(MapWentBack, match="version 1, and 7 was known"):
        db.read_map()
    assert db.map_version == 7


def test_a_node_of_another_cluster_is_refused(routed: Fleet, router: Open) -> None:
    db = router(routed.topology())
    routed.execute("b", "UPDATE shardctl.cluster SET cluster = 'other'")
    with pytest.raises(AnotherCluster, match="node b belongs to cluster other"):
        db.read_map()


def test_many_threads_that_meet_the_fence_read_the_map_once(routed: Fleet, router: Open) -> None:
    db = router(routed.topology())
    db.read_map()
    with moved_by_hand(routed, 2, "a", "b"):
        pass
    made: list[int] = []

    def work(number: int) -> None:
        made.append(db.insert("photos", 2, {"id": number, "user_id": 2}))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert sorted(made) == list(range(20))
    assert db.stats().map_reads == 2
