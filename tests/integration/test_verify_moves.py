"""`verify --check leftovers` and moves: unfinished ones, unproved ones, and what they left."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.moves import conclusion, promotion
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import METHOD
from shardctl.moves.step import drive
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.retired import ID, OTHER
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    import pytest

    from shardctl.checks.findings import Finding
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.retired import Pruned
    from tests.fixtures.moves.spares import MovedFleet

POOLERS = "poolers"
"""A check that tells what a pause does to clients, whoever left it."""


def found(fleet: Fleet) -> list[Finding]:
    """Give all findings but those of servers for tests, and of nodes that wait."""
    return [
        f for f in verify(fleet) if f.check not in {"settings", POOLERS} and f.code != "not_there"
    ]


def left(fleet_retired: Pruned) -> list[Finding]:
    return verify(fleet_retired.fleet, "map", "leftovers")


def fail(*_: Any, **__: Any) -> None:
    raise ShardctlError("stopped by a test", hint="go on")


def test_an_unfinished_move_is_one_warning_that_stands_for_its_clone_and_its_slot(
    fleet_spares: MovedFleet,
) -> None:
    world = fleet_spares.world([2, 3], "c")
    steps = takewhile(lambda step: step.name != "cutover", METHODS[METHOD].steps)
    drive(world, list(steps), lambda _: None)
    move = world.plan.id
    (running,) = found(fleet_spares)
    assert told([running]) == [("leftovers", "move_running", None, (2, 3), move)]
    assert running.severity.value == "note"
    assert "shardctl move-shards by " in running.actual

    world.close()
    (finding,) = found(fleet_spares)
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), move)]
    assert finding.severity.value == "warning"
    assert finding.actual.startswith("unfinished, step follow, state reserved: from a to c, ")
    assert "`shardctl moves resume " in finding.hint
    assert "`shardctl moves abort " in finding.hint
    # The line that people read names the move, its shards and its state.
    printed = fleet_spares.here("verify", "--check", "leftovers", "--strict")
    assert printed.returncode == 1
    start = f"warning: leftovers: 2 shards (2-3): {move}: expected a running or finished move, "
    assert [line for line in printed.stdout.splitlines() if line.startswith(start)]

    # A clone that is stopped leaves the slot alone, which holds back WAL.
    fleet_spares.execute("a", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    assert {f.code for f in found(fleet_spares)} == {"move_unfinished"}
    assert fleet_spares.here("moves", "abort", "--yes").returncode == 0
    assert found(fleet_spares) == []


def test_between_two_owners_it_is_an_error_that_stands_for_what_nodes_and_maps_say(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ("move-shards", "2-3", "--to", "c", "--retain", "0s", "--yes")
    for command, module, where, state in (
        (begin, promotion, "claim", "promoting"),
        (("moves", "resume"), conclusion, "spread_map", "claimed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, where, fail)
            assert fleet_spares.here(*command).returncode == 3
        (finding,) = found(fleet_spares)
        move = fleet_spares.listed()[0]["id"]
        assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), move)]
        assert finding.severity.value == "error"
        assert finding.actual.startswith(f"unfinished, state {state}: from a to c, ")
        assert "abort" not in finding.hint
    assert fleet_spares.here("moves", "resume").returncode == 0

    # Whoever had the target's snapshot is gone, so that nothing could be compared.
    unconfirmed, *kept = found(fleet_spares)
    assert told([unconfirmed]) == [("leftovers", "move_unconfirmed", None, (2, 3), move)]
    assert unconfirmed.severity.value == "warning"
    assert "`shardctl prune --accept-unconfirmed`" in unconfirmed.hint
    assert told(kept) == [
        ("leftovers", "retired_due", "a", (2, 3), move),
        ("leftovers", "retired_due", "c", (0, 1), move),
    ]
    assert {f.hint for f in kept} == {"run `shardctl prune --accept-unconfirmed` to free the space"}
    assert fleet_spares.here("prune", "--yes", "--accept-unconfirmed").returncode == 0
    assert found(fleet_spares) == []


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


def test_copies_that_differ_are_an_error_until_they_are_gone(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, 3)
    fleet_retired.record(MoveState.unconfirmed, proof="differs")
    (finding,) = left(fleet_retired)
    assert told([finding]) == [("leftovers", "copies_differ", None, (2, 3), ID)]
    assert finding.severity.value == "error"
    for shard in (2, 3):
        fleet_retired.fleet.execute("a", f"DROP SCHEMA shard{shard}__retired_{ID} CASCADE")
    assert left(fleet_retired) == []


def test_a_retired_schema_that_no_move_explains_is_the_maps_to_tell(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, move=OTHER)
    fleet_retired.record(MoveState.aborted, proof=None)
    fleet_retired.retire(3)
    assert told(left(fleet_retired)) == [
        ("map", "retired_schema", "a", (), f"shard2__retired_{OTHER}"),
        ("map", "retired_schema", "a", (), f"shard3__retired_{ID}"),
    ]


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
