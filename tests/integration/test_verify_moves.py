"""`verify --check leftovers` and moves: unfinished ones, unproved ones, and what they left."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.state.journal import MoveState
from tests.fixtures.fleets.retired import ID, OTHER
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from shardctl.checks.findings import Finding
    from tests.fixtures.fleets.retired import Pruned


def left(fleet_retired: Pruned) -> list[Finding]:
    return verify(fleet_retired.fleet, "map", "leftovers")


def test_retired_schemas_are_told_with_their_age_and_whether_they_are_due(
    fleet_retired: Pruned,
) -> None:
    fleet_retired.retire(2, 3)
    fleet_retired.record(retain_s=3600)
    (kept,) = left(fleet_retired)
    assert told([kept]) == [("leftovers", "retired_kept", "a", (2, 3), ID)]
    assert kept.severity.value == "note"
    assert kept.actual.startswith("2 retired schemas, ")
    assert re.search(r" [kM]B, of a move that ended \d+ s ago", kept.actual)
    assert ", kept until " in kept.actual
    fleet_retired.fleet.execute_everywhere(
        "UPDATE shardctl.move SET ended = ended - interval '1 day 1 hour'"
    )
    (due,) = left(fleet_retired)
    assert told([due]) == [("leftovers", "retired_due", "a", (2, 3), ID)]
    assert " of a move that ended 1 d 1 h ago" in due.actual
    assert due.hint == "run `shardctl prune` to free the space"


def test_a_locked_retired_schema_is_told_without_its_size(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    with fleet_retired.fleet.connect("a", autocommit=False) as session:
        session.execute(f"LOCK TABLE shard2__retired_{ID}.tags IN ACCESS EXCLUSIVE MODE")
        (finding,) = left(fleet_retired)
    assert finding.actual.startswith("1 retired schema, unknown size, of a move ")


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
        ("leftovers", "slot_inactive", "a", (), f"shardctl_{OTHER}"),
        ("leftovers", "slot_of_move", "a", (), f"shardctl_{ID}"),
    ]
    assert of_move.actual.startswith("physical slot of a move in state done, inactive, ")
    assert of_move.hint == "run `shardctl moves doctor` to drop it"


def test_a_move_that_one_side_does_not_know_to_be_over_is_a_warning(fleet_retired: Pruned) -> None:
    fleet_retired.record(MoveState.routed, nodes=["a"])
    fleet_retired.record(nodes=["b"])
    (finding,) = left(fleet_retired)
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), ID)]
    assert finding.severity.value == "warning"
    assert finding.hint == f"run `shardctl moves resume {finding.object}` to continue it"
