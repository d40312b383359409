"""Calls that ask many shards, on real nodes and on both faces."""

from __future__ import annotations

import asyncio
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.router import (
    Aggregate,
    AsyncShardedDatabase,
    DeadlinePassed,
    OrderUnsupported,
    PoolSettings,
    WritesUnseen,
)
from tests.fixtures.fleets.routed import FACES, backends
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def made(number: int, shard: int) -> datetime:
    return DAY + timedelta(seconds=number * 8 + shard)


def fill(fleet: Fleet, count: int) -> None:
    """Write so many rows into each shard, with ids that are the same in every shard."""
    for shard in range(8):
        fleet.execute(
            "a" if shard < 4 else "b",
            f"INSERT INTO shard{shard}.photos (id, user_id, caption, score, made)"
            f" SELECT n, {shard}, 'photo ' || n, CASE n % 7 WHEN 0 THEN NULL"
            f" WHEN 1 THEN 'NaN'::numeric ELSE n % 13 END,"
            f" '2026-01-01Z'::timestamptz + (n * 8 + {shard}) * interval '1 s'"
            f" FROM generate_series(1, {count}) n",
        )


def test_what_an_open_transaction_has_changed_is_not_missed_in_silence(
    fleet_routed: Fleet,
) -> None:
    fill(fleet_routed, 1)

    async def read(statement: str, name: str, *given: Any, **named: Any) -> list[Any]:
        async with AsyncShardedDatabase(fleet_routed.topology()) as db:
            async with db.shard(2) as connection:
                await connection.execute(statement.encode())
                found: list[Any] = await getattr(db, name)(*given, **named)
            return found

    lock = "SELECT id FROM photos WHERE id = 1 FOR UPDATE"
    insert = "INSERT INTO photos (id, user_id) VALUES (7, 2)"
    many = ("scatter", "id", "photos")
    assert len(asyncio.run(read(lock, *many, limit=9))) == 8
    with pytest.raises(WritesUnseen):
        asyncio.run(read(insert, *many, limit=9))
    keys = ("select_keys", "id", "photos")
    with pytest.raises(WritesUnseen):
        asyncio.run(read(insert, *keys, [4, 2], key_field="user_id"))
    assert asyncio.run(read(insert, *keys, [4], key_field="user_id")) == [(1,)]
    assert len(asyncio.run(read("SELECT", *many, limit=10))) == 9


def test_the_newest_rows_of_all_shards_are_merged(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 40)
    db = router(fleet_routed.topology())
    found = db.scatter(["user_id", "id"], "photos", order_by="-made", limit=10)
    newest = sorted(((made(n, s), s, n) for n in range(1, 41) for s in range(8)), reverse=True)
    assert found == [(shard, number) for _, shard, number in newest[:10]]
    where, given = "user_id = %s AND id > %s", [6, 38]
    assert db.scatter("id", "photos", where, given, order_by="id", limit=9) == [(39,), (40,)]
    named = db.scatter("id", "photos", "id = %(id)s", {"id": 7}, order_by=["id"], limit=3)
    assert named == [(7,), (7,), (7,)]
    with pytest.raises(OrderUnsupported):
        db.scatter("caption", "photos", order_by="caption", limit=1)


def lock(fleet: Fleet, node: str, shard: int) -> psycopg.Connection[Any]:
    """Let nobody read a shard until the session ends."""
    session = fleet.connect(node, autocommit=False)
    session.execute(f"LOCK TABLE shard{shard}.photos".encode())
    return session


@FACES
def test_a_node_that_hangs_holds_nobody_up_when_time_is_over(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, 1)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    db.scatter("id", "photos", limit=1)
    hanging = [str(pid) for pid in backends(fleet_routed, "b")]
    subprocess.run(["/bin/kill", "-STOP", *hanging], check=False)  # as far as they are still there
    try:
        with pytest.raises(DeadlinePassed):
            db.scatter("id", "photos", limit=9, timeout=0.3)
        # What did not answer is not given to the next one, though the process still hangs.
        assert db.insert("photos", 6, {"user_id": 6}) > 0
        assert db.insert("photos", 1, {"user_id": 1}) > 0
    finally:
        subprocess.run(["/bin/kill", "-CONT", *hanging], check=False)
    pools = db.stats().pools.values()
    wait_for(lambda: all(one["pool_size"] == one["pool_available"] for one in pools))
    assert len(db.scatter("id", "photos", limit=20)) == 10


@FACES
def test_rows_of_some_keys_are_read_in_one_order(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 9)
    db = router(fleet_routed.topology())
    db.insert("photos", 14, {"id": 100, "user_id": 14})  # beside user 6, in shard 6
    given = {"key_field": "user_id", "order_by": ["-id", "user_id"]}
    fields, keys = ["user_id", "id"], [6, 1, 14, 6, 3, 22]
    assert db.select_keys(fields, "photos", keys, limit=4, **given) == [
        (14, 100), (1, 9), (3, 9), (6, 9),
    ]  # fmt: skip
    assert db.select_keys(fields, "photos", keys, limit_per_key=2, **given) == [
        (14, 100), (1, 9), (3, 9), (6, 9), (1, 8), (3, 8), (6, 8),
    ]  # fmt: skip
    where = "id < %s OR id > %s", [2, 50]
    assert db.select_keys("user_id", "photos", keys, *where, limit_per_key=1, **given) == [
        (14,), (1,), (3,), (6,),
    ]  # fmt: skip
    assert db.select_keys("id", "photos", [14, 6], "id > 8", key_field="user_id") == [(9,), (100,)]
    assert db.select_keys("id", "photos", [], **given) == []
    evil = {"key_field": "user_id = 1 OR true --"}
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.select_keys("id", "photos", [1], **evil)


@FACES
def test_rows_of_many_keys_are_written_at_once(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    rows: list[dict[str, Any]] = [
        {"id": 1000 + n, "user_id": n, "caption": "100 %"} for n in range(40)
    ]
    assert db.insert_many("photos", rows, key_field="user_id") == 40
    assert db.select(["id", "caption"], "photos", 13, "user_id = 13") == [(1013, "100 %")]
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.insert_many("photos", rows, key_field="user_id")
    with pytest.raises(ValueError, match="fields"):
        db.insert_many("photos", [*rows, {"user_id": 1}], key_field="user_id")
    again = [row | {"caption": "new"} for row in [*rows[:5], {"id": 9, "user_id": 41}]]
    given = {"key_field": "user_id"}
    assert db.insert_many("photos", again, on_conflict="DO NOTHING", **given) == 1
    change = "(id) DO UPDATE SET caption = excluded.caption WHERE excluded.id % 2 < 2"
    assert db.insert_many("photos", again, on_conflict=change, **given) == 6
    found = db.scatter("user_id", "photos", "caption = 'new'", order_by="user_id", limit=99)
    assert found == [(0,), (1,), (2,), (3,), (4,), (41,)]
    assert db.insert_many("photos", [], key_field="user_id") == 0
    copied = [{"id": 2000 + n, "user_id": n % 2, "caption": "\t%\n"} for n in range(100)]
    assert db.insert_many("photos", copied, key_field="user_id") == 100
    assert db.select("caption", "photos", 1, "id = 2099") == [("\t%\n",)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.insert_many("photos", copied, key_field="user_id")


def test_aggregates_are_of_all_shards(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    fields = [
        Aggregate.count(), Aggregate.count("score"), Aggregate.sum("id"), Aggregate.min("score"),
        Aggregate.max("made"),
    ]  # fmt: skip
    assert db.scatter(fields, "photos", limit=1) == [(0, 0, None, None, None)]
    fill(fleet_routed, 20)
    some = db.scatter(fields, "photos", "score <> 'NaN'", limit=1)
    assert some == [(8 * 15, 8 * 15, 8 * 165, 0, made(20, 7))]
    assert str(db.scatter(Aggregate.max("score"), "photos", limit=1)[0][0]) == "NaN"
    with pytest.raises(ValueError, match="scatter"):
        db.select_keys([Aggregate.count()], "photos", [1, 2], key_field="user_id")
