"""Shards that move under an application: found again, and nothing is repeated without need."""

from __future__ import annotations

import operator
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.router import (
    AnotherCluster,
    DeadlinePassed,
    MapWentBack,
    ShardedDatabase,
    ShardMoved,
    places,
)
from tests.fixtures.fleets.routed import FACES, away, move_by_hand
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open

ROW = {"id": 1, "user_id": 2, "caption": "new"}


@FACES
def test_statements_go_to_the_new_owner_and_the_map_is_read_once(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    assert db.read_map() == 1
    db.insert("photos", 2, ROW | {"id": 9})
    move_by_hand(fleet_routed)
    assert db.insert("photos", 2, ROW) == 1
    assert db.node_of(2) == "b"
    assert (db.map_version, db.stats().map_reads, db.stats().repeated) == (2, 2, 1)
    assert db.update("photos", 2, {"caption": "newer"}, "id = 1") == 1
    assert db.select("caption", "photos", 2) == [("newer",)]
    assert db.within(2, "SELECT caption FROM photos") == [("newer",)]
    assert (db.stats().map_reads, db.stats().repeated) == (2, 1)


@FACES
def test_a_transaction_is_told_that_its_shard_has_moved_and_may_run_again(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    insert = "INSERT INTO photos (id, user_id) VALUES (5, 2)"
    move_by_hand(fleet_routed)
    with pytest.raises(ShardMoved):
        db.within(2, insert)
    db.within(2, insert)
    assert db.select("id", "photos", 2) == [(5,)]


def test_a_closed_copy_of_a_shard_that_comes_back_is_the_fence_too(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    assert db.read_map() == 1
    move_by_hand(fleet_routed)
    fleet_routed.execute("a", "CREATE SCHEMA shard2 CREATE TABLE photos (id int)")
    assert db.insert("photos", 2, ROW) == 1
    assert (db.node_of(2), db.stats().repeated) == ("b", 1)


def test_a_map_that_goes_backwards_is_refused(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    for node in "ab":
        fleet_routed.execute(node, "UPDATE shardctl.cluster SET map_version = 7")
    assert db.read_map() == 7
    for node in "ab":
        fleet_routed.execute(node, "UPDATE shardctl.cluster SET map_version = 1")
    with pytest.raises(MapWentBack):
        db.read_map()
    assert db.map_version == 7


def test_a_node_cannot_draw_the_shards_of_others_to_itself(
    fleet_routed: Fleet, router: Open
) -> None:
    """Its map is newer than all others: somebody has the node."""
    db = router(fleet_routed.topology(), patience=0.2)
    assert db.read_map() == 1
    move_by_hand(fleet_routed)
    fleet_routed.execute("b", "ALTER SCHEMA shard7 RENAME TO hidden")
    fleet_routed.execute("b", "UPDATE shardctl.map SET node = 'b'")
    for version in (1000, 1001):
        fleet_routed.execute("b", f"UPDATE shardctl.cluster SET map_version = {version}")
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.select("id", "photos", 7)
        assert db.read_map() == 1
        assert [db.node_of(shard) for shard in range(4)] == ["a"] * 4
    fleet_routed.execute("b", "UPDATE shardctl.map SET node = 'a' WHERE shard IN (0, 1, 3)")
    fleet_routed.execute("b", "UPDATE shardctl.cluster SET map_version = 3")
    assert db.insert("photos", 2, ROW) == 1
    assert (db.node_of(2), db.node_of(3), db.map_version) == ("b", "a", 3)


def test_a_node_of_another_cluster_is_refused(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    fleet_routed.execute("b", "UPDATE shardctl.cluster SET cluster = 'other'")
    with pytest.raises(AnotherCluster):
        db.read_map()


def test_a_topology_with_other_settings_writes_nothing(fleet_routed: Fleet, router: Open) -> None:
    other = replace(fleet_routed.topology(), key_rule="id")
    db = router(other)
    with pytest.raises(AnotherCluster):
        db.insert("photos", 6 << 10, {"user_id": 6 << 10})
    with pytest.raises(AnotherCluster):
        router(replace(other, cluster="other", key_rule="modulo")).insert("photos", 1, {})
    with raises_code("keys_not_ids"):
        router(fleet_routed.topology()).insert_new("photos", {})
    assert fleet_routed.query("b", "SELECT FROM shard6.photos") == []


def ask_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing end a question to a node that does not answer."""
    monkeypatch.setattr("shardctl.router.core.ASK_S", 600.0)
    monkeypatch.setitem(places._ASKING, "connect_timeout", 600)
    monkeypatch.setitem(places._ASKING, "tcp_user_timeout", 0)


@FACES
def test_a_timeout_holds_though_a_shard_is_fenced_and_a_node_never_answers(
    fleet_routed: Fleet, router: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_for_ever(monkeypatch)
    late: list[DeadlinePassed] = []
    fleet_routed.shards = {**fleet_routed.shards, "c": "none"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with fleet_routed.at_ports(c=silent.getsockname()[1]):
            db = router(fleet_routed.topology(), patience=600)

        def ask() -> None:
            with pytest.raises(DeadlinePassed) as caught:
                db.select_keys("id", "photos", [2], key_field="user_id", timeout=0.3)
            late.append(caught.value)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        with away(fleet_routed):
            for one in threads:
                one.start()
            for one in threads:
                one.join(30)
            assert [one.shards for one in late] == [{2}, {2}]


def test_a_cutover_that_is_undone_is_no_error(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), patience=30)
    for key in range(4):
        db.insert("photos", key, {"id": 50, "user_id": key})
    results: list[Any] = []
    asking: list[Callable[[], Any]] = [
        lambda: db.insert("photos", 2, ROW),
        lambda: db.select("id", "photos", 2, "id = 50"),
        lambda: db.scatter("user_id", "photos", "id = 50", order_by="user_id", limit=9),
    ]

    def ask(number: int) -> None:
        try:
            results.append((number, asking[number]()))
        except Exception as error:  # noqa: BLE001  # the test tells it
            results.append((number, error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asking))]
    with away(fleet_routed):
        for one in threads:
            one.start()
        looking = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_namespace%ANY%'"
        wait_for(lambda: fleet_routed.query("a", looking) > [(1,)])
        with pytest.raises(psycopg.errors.UndefinedTable):
            router(fleet_routed.topology(), patience=0).select("id", "photos", 2)
    for one in threads:
        one.join(120)
    everyone = [(0,), (1,), (2,), (3,)]
    assert sorted(results, key=operator.itemgetter(0)) == [
        (0, 1), (1, [(50,)]), (2, everyone),
    ]  # fmt: skip
    assert (db.map_version, db.node_of(2), db.stats().repeated) == (1, "a", 3)


def test_a_transaction_is_told_although_it_has_caught_the_fences_error(
    fleet_routed: Fleet,
) -> None:
    with ShardedDatabase(fleet_routed.topology()) as db:
        move_by_hand(fleet_routed)
        with (
            pytest.raises(ShardMoved),
            db.shard(2) as connection,
            suppress(psycopg.errors.UndefinedTable),
        ):
            connection.execute("INSERT INTO photos (id, user_id) VALUES (5, 2)")


def test_a_clone_that_tells_its_sources_name_is_not_heard(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    fleet_routed.execute("b", "UPDATE shardctl.cluster SET node = 'a', map_version = 7")
    assert db.read_map() == 1
    assert db.check()["b"].error == "connected to node a instead"
