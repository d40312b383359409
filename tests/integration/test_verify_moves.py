"""`verify --check leftovers` and moves: the slots that they left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.fleets.retired import ID, OTHER
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.fleets.retired import Pruned


def left(fleet_retired: Pruned) -> list[Finding]:
    return verify(fleet_retired.fleet, "map", "leftovers")


def test_the_slot_of_a_move_that_is_over_is_found(fleet_retired: Pruned) -> None:
    fleet_retired.record()
    for move in (ID, OTHER):
        fleet_retired.fleet.execute(
            "a", f"SELECT pg_create_physical_replication_slot('shardctl_{move}', true)"
        )
    try:
        of_nobody, of_move = left(fleet_retired)
    finally:
        fleet_retired.fleet.execute(
            "a", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        )
    assert told([of_nobody, of_move]) == [
        ("leftovers", "left_by_move", "a", (), OTHER),
        ("leftovers", "left_by_move", "a", (), ID),
    ]
