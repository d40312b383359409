"""A stream whose target cannot apply a change, or has another row than its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import marks
from shardctl.moves.confirm import CopiesDiffer
from tests.fixtures.moves.own import run
from tests.fixtures.moves.stream_moves import assert_clean, fails

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

BY_HAND = """
    ALTER TABLE shard2.photos DISABLE TRIGGER ALL;
    INSERT INTO shard2.photos (id, user_id) VALUES (-7, 1);
    ALTER TABLE shard2.photos ENABLE TRIGGER ALL;
    ALTER TABLE shard2.photos ENABLE ALWAYS TRIGGER shardctl_copy
"""


@pytest.fixture
def fleet_logged(fleet_own_bare: Lab) -> Lab:
    """Give a fleet whose servers write logs that can be read by SQL."""
    fleet_own_bare.begin(logging_collector="'on'", wal_retrieve_retry_interval="200ms")
    return fleet_own_bare


def test_a_row_that_is_there_already_is_named_and_the_move_goes_on_without_it(
    fleet_logged: Lab,
) -> None:
    """A superuser has put it there, with the triggers out of force."""

    def collide() -> None:
        run(fleet_logged, "b", BY_HAND)
        run(fleet_logged, "a", "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 2)")

    error = fails(fleet_logged, follow=collide)
    assert isinstance(error, marks.MarkNotSeen)
    assert "(table shard2.photos)" in error.message
    assert fleet_logged.put(2)  # clients have not noticed
    run(fleet_logged, "b", BY_HAND.replace("INSERT", "DELETE FROM shard2.photos WHERE id = -7; --"))
    fleet_logged.resume()
    assert fleet_logged.copy("b").proof == "compared"
    assert (-7, 2) in fleet_logged.ask("b", "SELECT id, user_id FROM shard2.photos")
    assert_clean(fleet_logged, "b")


def test_a_function_that_the_target_lacks_is_named_and_the_move_is_taken_back(
    fleet_logged: Lab,
) -> None:
    """A CHECK calls it by another one: nothing depends on it, so preflight cannot know."""
    run(
        fleet_logged, "a",
        "CREATE FUNCTION public.judge(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT $1 > 0'",
        "CREATE FUNCTION shard2.fits(bigint) RETURNS boolean LANGUAGE plpgsql"
        " AS 'BEGIN RETURN public.judge($1); END'",
        "CREATE TABLE shard2.judged (id bigint PRIMARY KEY CHECK (shard2.fits(id)))",
    )  # fmt: skip
    error = fails(
        fleet_logged, follow=lambda: run(fleet_logged, "a", "INSERT INTO shard2.judged VALUES (1)")
    )
    assert isinstance(error, marks.MarkNotSeen)
    assert "function public.judge(bigint) does not exist (table shard2.judged)" in error.message
    fleet_logged.abort()
    run(fleet_logged, "a", "DROP TABLE shard2.judged; DROP FUNCTION shard2.fits, public.judge")
    assert_clean(fleet_logged, "a")


def test_a_row_by_hand_behind_the_rehearsal_is_found_by_the_comparison(fleet_own: Lab) -> None:
    statements = (
        "UPDATE shardctl.stream_copy SET is_open = true",
        "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 1)",
        "UPDATE shardctl.stream_copy SET is_open = false",
    )
    error = fails(fleet_own, cutover=lambda: run(fleet_own, "b", *statements))
    assert isinstance(error, CopiesDiffer)
    assert error.tables == ("shard2.photos: 1 rows on a, 2 on b",)
    assert fleet_own.leads("shard2") == "b"
    assert fleet_own.copy("b").proof == "differs"
