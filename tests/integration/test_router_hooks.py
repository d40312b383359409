"""What the router reports of its statements, and what a hook that fails does not change."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.router import AsyncShardedDatabase, Count, ShardedDatabase, StatementEvent
from tests.fixtures import storms
from tests.fixtures.fleets.routed import moved_by_hand

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open


def test_every_call_is_reported_when_it_has_ended(fleet_routed: Fleet, router: Open) -> None:
    seen: list[StatementEvent] = []
    db = router(fleet_routed.topology(), on_statement=seen.append)
    made = db.insert("photos", 2, {"user_id": 2})
    db.select("id", "photos", 6)
    db.update("photos", 2, {"caption": "x"}, "id = %s", [made])
    db.delete("photos", 2, "id = %s", [made])
    db.within(2, "SELECT 1")
    db.ran(2, "SELECT 1")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.select("nothing", "photos", 2)
    found = [(one.call, one.table, one.shard, one.node, one.repeats) for one in seen]
    assert found == [
        ("insert", "photos", 2, "a", 0),
        ("select", "photos", 6, "b", 0),
        ("update", "photos", 2, "a", 0),
        ("delete", "photos", 2, "a", 0),
        ("shard", None, 2, "a", 0),
        ("run", None, 2, "a", 0),
        ("select", "photos", 2, "a", 0),
    ]
    assert [type(one.error) for one in seen] == [type(None)] * 6 + [psycopg.errors.UndefinedColumn]
    assert all(one.milliseconds > 0 for one in seen)
    seen.clear()
    db.fetch_many("id", "photos", [(2, 1), (6, 1)])
    db.select_many("id", "photos", [2, 6, 3], "user_id")
    db.insert_many("photos", [(2, {"user_id": 2}), (6, {"user_id": 6})])
    db.scatter(Count(), "photos")
    by_call: dict[str, list[tuple[Any, Any]]] = {}
    for one in seen:
        by_call.setdefault(one.call, []).append((one.node, one.shards))
    assert {call: sorted(found) for call, found in by_call.items()} == {
        "fetch_many": [("a", (2,)), ("b", (6,))],
        "select_many": [("a", (2, 3)), ("b", (6,))],
        "insert_many": [("a", (2,)), ("b", (6,))],
        "scatter": [("a", (0, 1, 2, 3)), ("b", (4, 5, 6, 7))],
    }


def test_repeats_are_told(fleet_routed: Fleet, router: Open) -> None:
    seen: list[StatementEvent] = []
    db = router(fleet_routed.topology(), on_statement=seen.append)
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        pass
    db.ran(2, "SELECT FROM photos")
    with moved_by_hand(fleet_routed, 1, "a", "b"):
        pass
    db.insert("photos", 1, {"id": 1, "user_id": 1})
    assert [(one.call, one.node, one.repeats) for one in seen] == [
        ("run", "b", 1),
        ("insert", "b", 1),
    ]


def test_a_hook_that_fails_changes_nothing(
    fleet_routed: Fleet, router: Open, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: StatementEvent) -> None:
        raise ZeroDivisionError("of the hook")

    db = router(fleet_routed.topology(), on_statement=fail)
    made = db.insert("photos", 2, {"user_id": 2})
    assert db.select("id", "photos", 2) == [(made,)]
    assert db.ran(2, "SELECT id FROM photos") == [(made,)]
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.select("nothing", "photos", 2)
    assert storms.missing(db.db) == {}
    told = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(told) == 4
    assert told[0].name == "shardctl.router"
    assert "of the hook" in str(told[0].exc_info)


def test_a_cancelled_statement_is_reported_too(fleet_routed: Fleet) -> None:
    seen: list[StatementEvent] = []

    async def work() -> None:
        async with AsyncShardedDatabase(fleet_routed.topology(), on_statement=seen.append) as db:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await db.run(2, lambda connection: connection.execute("SELECT pg_sleep(30)"))
            assert [one.call for one in seen] == ["run"]
            assert isinstance(seen[0].error, asyncio.CancelledError)
            task = asyncio.create_task(db.insert_many("photos", [(2, {"id": 1, "user_id": 2})]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await storms.missing_after_tasks(db) == {}

    asyncio.run(work())


def test_the_log_names_statements_and_no_values(
    fleet_routed: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shardctl.router")
    with ShardedDatabase(fleet_routed.topology()) as db:
        db.insert("photos", 2, {"user_id": 2, "caption": "secret"})
        db.read_map()
        assert threading.active_count() > 0
    text = "\n".join(one.getMessage() for one in caplog.records)
    assert "insert photos on node a, shards 2: " in text
    assert "read version 1 of the map (before: 0): 0 shards have another node" in text
    assert "secret" not in text
