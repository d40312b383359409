"""Prune: which retired schemas are dropped, which are not, and why; the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardctl.moves.prune import PruneUnfinished
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.retired import ID, OTHER, RETIRED, Pruned, changed
from tests.fixtures.fleets.verify import told, verify

# Which may be dropped


def test_before_retain_has_passed_it_stays_unless_now_is_said(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record(retain_s=3600)
    assert fleet_retired.verdict() is not None
    assert fleet_retired.verdict(now=True) is None


def test_what_no_journal_knows_stays(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, move=OTHER)
    fleet_retired.record()
    assert fleet_retired.verdict(now=True, accept=True) is not None


def test_what_is_no_shards_stays(fleet_retired: Pruned) -> None:
    fleet_retired.record()
    fleet_retired.fleet.execute("a", f"CREATE SCHEMA shard8__retired_{ID}")
    fleet_retired.fleet.execute("a", f"CREATE SCHEMA mine__retired_{ID}")
    assert len(fleet_retired.verdicts()) == 2
    assert all(fleet_retired.verdicts(now=True, accept=True).values())


def test_the_schemas_of_a_move_that_is_not_closed_stay(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    for state in [s for s in MoveState if s not in (MoveState.done, MoveState.unconfirmed)]:
        fleet_retired.fleet.execute_everywhere("TRUNCATE shardctl.move CASCADE")
        fleet_retired.record(state, proof="compared" if state is MoveState.routed else None)
        assert ID in (fleet_retired.verdict(now=True, accept=True) or ""), state


def test_a_move_that_one_node_does_not_know_to_be_over_is_not_closed(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record(nodes=["b"])
    fleet_retired.record(MoveState.routed, nodes=["a"])
    assert ID in (fleet_retired.verdict(now=True, accept=True) or "")


def test_a_done_move_without_a_comparison_is_left_unless_accepted(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record(proof=None)
    assert "--accept-unconfirmed" in (fleet_retired.verdict(now=True) or "")
    assert fleet_retired.verdict(now=True, accept=True) is None


def test_copies_that_differed_are_never_dropped(fleet_retired: Pruned) -> None:
    """Their move is over when they have been dropped by hand, and prune looks next."""
    fleet_retired.record(MoveState.unconfirmed, proof="differs")
    fleet_retired.record(move=OTHER)
    fleet_retired.retire(2)
    assert fleet_retired.verdict(now=True, accept=True) is not None
    listed = json.loads(fleet_retired.fleet.here("moves", "list", "-o", "json").stdout)
    assert [m["can"] for m in listed["moves"] if m["state"] == "unconfirmed"] == [[]]
    fleet_retired.fleet.execute("a", f"DROP SCHEMA {fleet_retired.left()[0]} CASCADE")
    fleet_retired.retire(3, move=OTHER)
    fleet_retired.carry_out()
    states = fleet_retired.fleet.query("a", "SELECT DISTINCT state FROM shardctl.move")
    assert states == [("done",)]


def test_the_maps_of_all_nodes_have_to_agree(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    with changed(fleet_retired, "b", "shardctl.map.node", "a", "shard = 2"):
        assert fleet_retired.verdict(now=True, accept=True) is not None
        with changed(fleet_retired, "a", "shardctl.map.node", "a", "shard = 2"):
            assert fleet_retired.verdict(now=True, accept=True) is not None
    with (
        changed(fleet_retired, "b", "shardctl.map.node", "z", "shard = 2"),
        changed(fleet_retired, "a", "shardctl.map.node", "z", "shard = 2"),
    ):
        assert fleet_retired.verdict(now=True, accept=True) is not None


def test_a_shard_that_came_back_has_to_be_proved_to_have_done_so(fleet_retired: Pruned) -> None:
    """The map alone does not say that the live schema has what the retired one has."""
    fleet_retired.retire(2)
    fleet_retired.record()
    with (
        changed(fleet_retired, "a", "shardctl.map.node", "a", "shard = 2"),
        changed(fleet_retired, "b", "shardctl.map.node", "a", "shard = 2"),
    ):
        assert fleet_retired.verdict() is not None
        for given in NOT_BACK:
            fleet_retired.come_back(**given)
            assert fleet_retired.verdict(now=True) is not None, given
        fleet_retired.come_back()
        assert fleet_retired.verdict() is not None  # it is not live there
        fleet_retired.fleet.execute("a", "CREATE SCHEMA shard2")
        found = fleet_retired.plan()
        assert [one.why_not for one in found] == [None]
        # What has changed since the plan was made counts.
        fleet_retired.come_back(proof="differs")
        with pytest.raises(PruneUnfinished):
            fleet_retired.carry_out(found)
        fleet_retired.come_back(state=MoveState.unconfirmed, proof="forked")
        with pytest.raises(PruneUnfinished, match="--accept-unconfirmed"):
            fleet_retired.carry_out(found)
        assert fleet_retired.verdict(accept=True) is None
        fleet_retired.come_back()
        fleet_retired.carry_out()
        assert fleet_retired.left() == []


NOT_BACK: tuple[dict[str, Any], ...] = (
    {"version": 1},
    {"state": MoveState.aborted},
    {"state": MoveState.routed},
    {"state": MoveState.unconfirmed, "proof": "forked"},
    {"state": MoveState.unconfirmed, "proof": "differs"},
)


def test_its_owner_has_to_have_the_shard_live(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    fleet_retired.fleet.execute("b", "ALTER SCHEMA shard2 RENAME TO away")
    assert fleet_retired.verdict() is not None
    done = fleet_retired.prune("--yes")
    assert (done.returncode, fleet_retired.left()) == (0, [RETIRED])


# Nodes that are not there


def test_another_cluster_at_a_nodes_address_is_refused(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    with changed(fleet_retired, "b", "shardctl.cluster.cluster", "films"):
        done = fleet_retired.prune("--yes")
    assert done.returncode == 1
    assert "films" in done.stderr
    assert fleet_retired.left() == [RETIRED]


# The command


def test_the_command_says_what_comes_back_and_records_it(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, 3, rows=20_000)
    fleet_retired.record()
    size = "SELECT pg_database_size(current_database())"
    before = fleet_retired.fleet.query("a", size)[0][0]
    dry = fleet_retired.prune("--dry-run", "-o", "json")
    assert dry.returncode == 0
    found = json.loads(dry.stdout)
    assert found["format"] == 1
    assert [sorted(one) for one in found["retired"]] == 2 * [
        ["move", "node", "refused", "schema", "shard", "size_bytes"]
    ]
    assert (
        found["reclaimed_bytes"] == sum(one["size_bytes"] for one in found["retired"]) > 4_000_000
    )
    assert len(fleet_retired.left()) == 2
    done = fleet_retired.prune("--yes")
    assert done.returncode == 0
    after = fleet_retired.fleet.query("a", size)[0][0]
    # The catalog's own tables do not shrink, and grow a little.
    assert before - after >= 0.95 * found["reclaimed_bytes"]
    found = fleet_retired.fleet.query(
        "a", "SELECT result FROM shardctl.event WHERE command = 'prune' ORDER BY 1"
    )
    assert found == [(f"dropped {schema}",) for schema in (RETIRED, f"shard3__retired_{ID}")]
    assert told(verify(fleet_retired.fleet, "map", "leftovers")) == []
