"""A stream whose target cannot apply a change."""

from __future__ import annotations

import re
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
def fleet_quick(fleet_own_bare: Lab) -> Lab:
    """Give a fleet whose workers try again soon."""
    fleet_own_bare.begin(wal_retrieve_retry_interval="200ms")
    return fleet_own_bare


def test_a_row_that_is_there_already_stops_the_move_which_goes_on_without_it(
    fleet_quick: Lab,
) -> None:
    """A superuser has put it there, with the triggers out of force."""

    def collide() -> None:
        fleet_quick.ask("b", BY_HAND)
        fleet_quick.ask("a", "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 2)")

    error = fails(fleet_quick, follow=collide)
    assert isinstance(error, marks.MarkNotSeen)
    assert re.search(r"it failed \d+ times at position", error.message)
    assert fleet_quick.put(2)  # clients have not noticed
    fleet_quick.ask("b", BY_HAND.replace("INSERT", "DELETE FROM shard2.photos WHERE id = -7; --"))
    fleet_quick.resume()
    assert fleet_quick.copy("b").proof == "compared"
    assert (-7, 2) in fleet_quick.ask("b", "SELECT id, user_id FROM shard2.photos")
    assert_clean(fleet_quick, "b")
