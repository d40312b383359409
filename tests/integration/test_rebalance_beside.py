"""`rebalance apply --parallel`: it begins no move after one that fails, and goes on by `resume`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.balance import write_plan
from tests.fixtures.moves.proof import assert_agreed

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.long


def saved(lab: Lab) -> str:
    """Write a plan of three moves, of which the last waits for the first, between its nodes."""
    moves = [("b", "d", [5]), ("a", "c", [2]), ("b", "d", [6])]
    return write_plan(lab.directory / "plan.json", lab.topology, *moves)


def of_group(lab: Lab) -> list[str]:
    done = lab.here("rebalance", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return [one["state"] for one in json.loads(done.stdout)["moves"]]


def test_a_move_that_fails_lets_the_other_end_and_no_other_begin(fleet_four: Lab) -> None:
    plan = saved(fleet_four)
    fleet_four.ask("c", "CREATE SCHEMA shard2")
    done = fleet_four.here("rebalance", "apply", "--plan", plan, "--parallel", "2", "--yes")
    assert done.returncode == 1, done.stderr
    assert "schemas with the names of moved shards" in done.stderr
    assert of_group(fleet_four) == ["done", "waiting", "waiting"]
    fleet_four.ask("c", "DROP SCHEMA shard2")
    done = fleet_four.here("rebalance", "resume", "--yes", "--lock-wait", "1m")
    assert done.returncode == 0, done.stderr
    assert_agreed(fleet_four, 4, shard2="c", shard5="d", shard6="d")
