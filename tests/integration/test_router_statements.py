"""The router on real nodes: rows go where their keys say, on both faces."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors, sql

from shardctl.router import ShardedDatabase, StatementEvent
from shardctl.router.errors import MapUnread, NodeUnknown, NotOpen
from tests.fixtures.fleets.routed import FACES, Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open


def captions(fleet: Fleet, node: str, shard: int) -> list[str]:
    rows = fleet.query(node, f"SELECT caption FROM shard{shard}.photos ORDER BY id")
    return [caption for (caption,) in rows]


@FACES
def test_rows_are_written_read_changed_and_removed_in_their_shard(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    made = db.insert("photos", 14, {"user_id": 14, "caption": "a sunset"})
    assert db.shard_of_id(made) == db.shard_of(14) == 6
    assert db.node_of(6) == "b"
    assert db.schema_of(6) == "shard6"
    assert captions(fleet_routed, "b", 6) == ["a sunset"]
    assert db.select(["id", "caption"], "photos", 14, "user_id = %s", [14]) == [(made, "a sunset")]
    changed = db.update("photos", 14, {"caption": "100 %"}, "id = %s", [made])
    assert changed == 1
    found = db.select("caption", "photos", 14, "caption LIKE '100 %'")
    assert found == [("100 %",)]
    named = {"id": made}
    assert db.update("photos", 14, {"caption": "dusk"}, "id = %(id)s", named) == 1
    assert db.select("caption", "photos", 14, "id = %(id)s", named) == [("dusk",)]
    assert db.delete("photos", 14, "id = %s", [made + 1]) == 0
    assert db.delete("photos", 14, "id = %s", [made]) == 1
    assert db.select("id", "photos", 14) == []


def test_what_is_changed_or_removed_can_be_returned(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    made = sorted(db.insert("photos", 14, {"user_id": 14, "caption": "x"}) for _ in range(2))
    found = db.update("photos", 14, {"caption": "y"}, "id > 0", returning=["id", "caption"])
    assert sorted(found) == [(number, "y") for number in made]
    named = {"id": made[0]}
    changed = db.update("photos", 14, {"caption": "z"}, "id = %(id)s", named, returning="id")
    assert changed == [(made[0],)]
    assert db.delete("photos", 14, "id = %s", [made[0]], returning="caption") == [("z",)]
    assert db.delete("photos", 14, "id = %s", [made[0]], returning="caption") == []


def test_sql_of_the_applications_own_runs_in_a_shard(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    into = "INSERT INTO photos (user_id, caption) VALUES (%s, %s) RETURNING id, caption"
    cursor = db.execute(into, [14, "50 %"], 14)
    assert (cursor.rowcount, cursor.description[1].name) == (1, "caption")
    assert captions(fleet_routed, "b", 6) == ["50 %"]
    with pytest.raises(errors.DivisionByZero):
        db.execute("DELETE FROM photos; SELECT 1 / 0", number=6)
    assert captions(fleet_routed, "b", 6) == ["50 %"], "it is a transaction"
    counted = sql.SQL("SELECT count(*) FROM photos WHERE caption LIKE '50 %'")
    assert db.execute(counted, number=6).statusmessage == "SELECT 1"
    assert db.execute("DELETE FROM photos WHERE caption LIKE '50 %%'", [], 14).rowcount == 1
    with pytest.raises(TypeError):
        db.execute("SELECT 1")


def test_names_from_outside_cannot_inject(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    db.insert("photos", 1, {"user_id": 1})
    evil = 'photos"; DROP TABLE shard1.photos; --'
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.select("id", evil, 1)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.select('id", (SELECT 1)) --', "photos", 1)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.insert("photos", 1, {"user_id) VALUES (1); DROP TABLE shard1.photos; --": 1})
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.scatter("id", "photos", order_by="id; DROP TABLE shard1.photos", limit=1)
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.select("id", "shard2.photos", 1)
    with pytest.raises(TypeError):
        db.select("id", "photos", 1, limit="1; DROP TABLE shard1.photos")
    assert len(db.select("id", "photos", 1)) == 1


@FACES
def test_a_transaction_is_in_one_shard_and_ends_as_one(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    insert = "INSERT INTO photos (user_id, caption) VALUES (6, 'both')"
    assert db.within(6, insert, insert, "SELECT count(*) FROM photos") == [(2,)]
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.within(6, insert, "SELECT 1 / 0")
    assert captions(fleet_routed, "b", 6) == ["both", "both"]
    # The connection that comes next has no path of the transaction's.
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.within(0, "SET LOCAL search_path TO public", "SELECT FROM photos")


def test_a_transaction_with_an_error_that_was_caught_is_no_success(fleet_routed: Fleet) -> None:
    with ShardedDatabase(fleet_routed.topology()) as db:
        with (
            pytest.raises(errors.InFailedSqlTransaction),
            db.shard(6) as connection,
            suppress(errors.DivisionByZero),
        ):
            connection.execute("INSERT INTO photos (user_id) VALUES (6) RETURNING 1 / 0")
        assert db.select("id", "photos", 6) == []
        with db.shard(6) as connection:
            connection.execute("INSERT INTO photos (user_id) VALUES (6)")
            with suppress(errors.DivisionByZero), connection.transaction():
                connection.execute("SELECT 1 / 0")
        assert len(db.select("id", "photos", 6)) == 1


@FACES
def test_work_is_done_again_when_nothing_of_it_was_written(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology())
    met: list[Exception] = [errors.SerializationFailure(), errors.DeadlockDetected()]

    def count(connection: Any, caption: str) -> Any:
        assert caption == "x"
        if met:
            raise met.pop()
        return connection.execute("SELECT count(*) FROM photos")

    async def count_in_task(connection: Any, caption: str) -> Any:
        return await count(connection, caption)

    work = count if isinstance(db, Threads) else count_in_task
    assert db.transaction(6, work, "x").rowcount == 1
    wrapped = RuntimeError("as an ORM says it")
    wrapped.__cause__ = errors.DeadlockDetected()
    met[:] = [wrapped]
    assert db.transaction(6, work, "x").rowcount == 1
    met[:] = [errors.DeadlockDetected()] * 2
    with pytest.raises(errors.DeadlockDetected):
        db.transaction(6, work, "x", attempts=2)
    for other in (errors.UniqueViolation, psycopg.OperationalError):
        met[:] = [other()]
        with pytest.raises(other):
            db.transaction(6, work, "x")


def test_what_may_have_been_executed_is_not_repeated(fleet_routed: Fleet, router: Open) -> None:
    told: list[StatementEvent] = []
    db = router(fleet_routed.topology(), on_statement=told.append)
    db.insert("photos", 1, {"user_id": 1})
    ends = "pg_terminate_backend(pg_backend_pid(), 60000)"
    calls: list[Callable[[], Any]] = [
        lambda: db.execute(f"SELECT {ends}", number=1),
        lambda: db.update("photos", 1, {"caption": "lost"}, ends),
        lambda: db.select_keys("id", "photos", [1], ends, key_field="user_id"),
    ]
    for call in calls:
        told.clear()
        with pytest.raises(psycopg.OperationalError):
            call()
        assert [one.repeated for one in told] == [False]


def test_a_node_tells_the_map_where_there_is_no_topology(fleet_routed: Fleet, router: Open) -> None:
    dsns = {
        node: f"host=127.0.0.1 port={server.port}"
        f" dbname={fleet_routed.database} user={fleet_routed.role}"
        for node, server in fleet_routed.servers.items()
    }
    db = router(dsns["a"], nodes=dsns)
    assert (db.map_version, db.shard_count) == (1, 8)
    db.insert("photos", 6, {"user_id": 6, "caption": "told"})
    assert captions(fleet_routed, "b", 6) == ["told"]
    lone = router(dsns["a"])
    lone.insert("photos", 1, {"user_id": 1})
    with pytest.raises(NodeUnknown):
        lone.insert("photos", 6, {"user_id": 6})


def test_what_tells_no_map_is_named(fleet_routed: Fleet) -> None:
    where = f"host=127.0.0.1 port={fleet_routed.servers['a'].port} dbname=postgres user=postgres"
    db = ShardedDatabase(where)
    with pytest.raises(NotOpen):
        db.shard_of(1)
    with pytest.raises(MapUnread):
        db.open()
    db.close()
