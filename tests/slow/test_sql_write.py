"""`shardctl sql --write`: committed shard by shard, recorded, under locks, never during a move."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.maintenance import sql, sql_plan
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.rows import MOVE, Stated

if TYPE_CHECKING:
    from collections.abc import Iterator

RAISE = "UPDATE photos SET user_id = user_id + 100"


def test_what_is_written_is_committed_in_every_shard_and_commands_are_folded(
    fleet_rows: Stated,
) -> None:
    done = fleet_rows.write(RAISE)
    assert (done.returncode, "UPDATE 1   8: 0-7" in done.stdout) == (0, True)
    assert fleet_rows.users() == [100 + n for n in range(8)]


def test_who_did_what_is_recorded_on_the_nodes_that_it_touched(fleet_rows: Stated) -> None:
    fleet_rows.write(RAISE, "--shards", "0-1")
    assert fleet_rows.events("a") == [
        ("sql", f"started: {RAISE}"),
        ("sql", "done: in 2 of 2 shards"),
    ]
    assert fleet_rows.events("b") == []


def test_a_password_is_not_recorded(fleet_rows: Stated) -> None:
    text = "CREATE ROLE short PASSWORD 'hunter2'; DROP ROLE short"
    assert fleet_rows.write(text, "--nodes").returncode == 0
    assert (
        fleet_rows.events("b")[0][1] == "started: CREATE ROLE short PASSWORD '***'; DROP ROLE short"
    )


def test_where_all_are_refused_nothing_is_changed_and_the_exit_code_is_1(
    fleet_rows: Stated,
) -> None:
    done = fleet_rows.write(f"{RAISE}; SELECT 1 / 0")
    assert done.returncode == 1
    assert fleet_rows.users() == list(range(8))
    assert fleet_rows.events()[-1] == ("sql", "unfinished: in 0 of 4 shards")


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
    plan = sql_plan.plan(topology, RAISE, shards=[ShardId(3)], write=True)
    fleet_rows.begin_move()
    with pytest.raises(Exception, match=f"move {MOVE}"):
        list(sql.Run(plan).events())
    assert fleet_rows.users() == list(range(8))


@pytest.fixture
def breaks_at_commit(fleet_rows: Stated) -> Iterator[None]:
    """Let the session break while shard 5 commits."""
    fleet_rows.fleet.execute(
        "b",
        "CREATE FUNCTION public.breaks() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER breaks AFTER UPDATE ON shard5.photos DEFERRABLE"
        " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.breaks()",
    )
    yield
    fleet_rows.fleet.execute("b", "DROP FUNCTION public.breaks() CASCADE")


@pytest.mark.usefixtures("breaks_at_commit")
def test_where_the_answer_to_commit_is_lost_that_is_said(fleet_rows: Stated) -> None:
    done = fleet_rows.write(RAISE, "--jobs", "1", "-o", "json")
    assert done.returncode == 3
    assert "--shards 6-7" in done.stderr
    failures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["shard"] for f in failures if f["error"] and f["error"]["unknown"]] == [5]
    assert fleet_rows.users() == [100, 101, 102, 103, 104, 5, 6, 7]
