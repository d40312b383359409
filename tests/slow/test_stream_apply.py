"""A stream whose target cannot apply a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import marks
from tests.fixtures.moves.proof import assert_clean
from tests.fixtures.moves.stream_moves import fails

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

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
        fleet_logged.ask("b", BY_HAND)
        fleet_logged.ask("a", "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 2)")

    error = fails(fleet_logged, follow=collide)
    assert isinstance(error, marks.MarkNotSeen)
    assert "(table shard2.photos)" in error.message
    assert fleet_logged.put(2)  # clients have not noticed
    fleet_logged.ask("b", BY_HAND.replace("INSERT", "DELETE FROM shard2.photos WHERE id = -7; --"))
    fleet_logged.resume()
    assert fleet_logged.copy("b").proof == "compared"
    assert (-7, 2) in fleet_logged.ask("b", "SELECT id, user_id FROM shard2.photos")
    assert_clean(fleet_logged, "b")
