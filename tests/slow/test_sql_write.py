"""`shardctl sql --write`: committed shard by shard, recorded, under locks, never during a move."""

from __future__ import annotations

import json

import pytest

from shardctl.maintenance import sql
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.fleet import open_move
from tests.fixtures.fleets.rows import MOVE, Stated

RAISE = "UPDATE photos SET user_id = user_id + 100"


def test_what_is_written_is_committed_and_recorded_where_it_was_without_passwords(
    fleet_rows: Stated,
) -> None:
    assert fleet_rows.write(RAISE, "--shards", "0-1").returncode == 0
    assert fleet_rows.users() == [100, 101, *range(2, 8)]
    assert fleet_rows.events("a") == [
        ("sql", f"started: {RAISE}"),
        ("sql", "done: in 2 of 2 shards"),
    ]
    assert fleet_rows.events("b") == []
    text = "CREATE ROLE short PASSWORD 'hunter2'; DROP ROLE short"
    assert fleet_rows.write(text, "--nodes").returncode == 0
    assert fleet_rows.events("b")[0][1] == f"started: {text.replace('hunter2', '***')}"


def test_where_some_are_refused_the_others_are_done_and_the_rest_is_named(
    fleet_rows: Stated,
) -> None:
    done = fleet_rows.write(f"{RAISE}; SELECT 1 / (user_id % 100 / 6) FROM photos", "-o", "json")
    assert done.returncode == 3
    assert fleet_rows.users() == [0, 1, 2, 3, 4, 5, 106, 107]
    assert "--shards 0-5" in done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {a["shard"] for a in answers if a["error"]} == set(range(6))
    # What was rolled back has given no answer.
    assert {a["shard"] for a in answers if a["command"]} == {6, 7}


def test_shards_that_changed_hands_while_the_operator_thought_are_not_written(
    fleet_rows: Stated,
) -> None:
    topology = fleet_rows.fleet.topology()
    plan = sql.planned(topology, RAISE, shards=[ShardId(3)], write=True)
    for node in "ab":
        with fleet_rows.fleet.connect(node) as session, session.transaction():
            open_move(session, MOVE)
    with pytest.raises(Exception, match=f"move {MOVE}"):
        list(sql.Run(plan).events())
    assert fleet_rows.users() == list(range(8))


def test_where_the_answer_to_commit_is_lost_that_is_said(fleet_rows: Stated) -> None:
    fleet_rows.fleet.execute(
        "b",
        "CREATE FUNCTION public.breaks() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER breaks AFTER UPDATE ON shard5.photos DEFERRABLE"
        " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.breaks()",
    )
    done = fleet_rows.write(RAISE, "--jobs", "1", "-o", "json")
    assert done.returncode == 3
    assert "--shards 6-7" in done.stderr
    failures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["shard"] for f in failures if f["error"] and f["error"]["unknown"]] == [5]
    assert fleet_rows.users() == [100, 101, 102, 103, 104, 5, 6, 7]


def test_a_password_is_not_recorded(fleet_rows: Stated) -> None:
    text = "CREATE ROLE short PASSWORD 'hunter2'; DROP ROLE short"
    assert fleet_rows.write(text, "--nodes").returncode == 0
    assert (
        fleet_rows.events("b")[0][1] == "started: CREATE ROLE short PASSWORD '***'; DROP ROLE short"
    )
