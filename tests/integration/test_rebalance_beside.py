"""`rebalance apply --parallel`: it goes on after Ctrl-C and a kill, and ends when a move fails."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.balance import write_plan
from tests.fixtures.moves.beside import agreed, begun, run, writing
from tests.fixtures.moves.own import run as execute
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.long


def saved(lab: Lab) -> str:
    """Write a plan of three moves, of which the last waits for the second, between its nodes."""
    moves = [("a", "c", [2]), ("b", "d", [5]), ("b", "d", [6])]
    return write_plan(lab.directory / "plan.json", lab.topology, *moves)


def of_group(lab: Lab) -> list[str]:
    done = run(lab, "rebalance", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return [one["state"] for one in json.loads(done.stdout)["moves"]]


def counted(lab: Lab, node: str, state: str) -> bool:
    query = f"SELECT count(*)::integer FROM shardctl.move WHERE state = '{state}'"
    return bool(lab.ask(node, query) == [(1,)])


def test_a_group_in_parallel_goes_on_after_ctrl_c_and_after_a_kill(fleet_four: Lab) -> None:
    plan = saved(fleet_four)
    with writing(fleet_four, 2, 5, 6):
        words = ("rebalance", "apply", "--plan", plan, "--parallel", "2")
        with ended(begun(fleet_four, *words)) as process:
            wait_for(lambda: all(counted(fleet_four, node, "reserved") for node in "ab"))
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, told
        assert not {"Traceback", "Fatal"} & {*told.split()}
        assert of_group(fleet_four) == ["unfinished", "unfinished", "waiting"]
        with ended(begun(fleet_four, "rebalance", "resume", "--lock-wait", "1m")) as process:
            wait_for(lambda: counted(fleet_four, "a", "done"))
            process.kill()
            process.wait()
        wait_for(lambda: "running" not in of_group(fleet_four))
        first, _, third = of_group(fleet_four)
        assert (first, third) == ("done", "waiting")
        done = run(fleet_four, "rebalance", "resume", "--yes", "--lock-wait", "1m")
        assert done.returncode == 0, done.stderr
    assert of_group(fleet_four) == ["done"] * 3
    agreed(fleet_four, 4, shard2="c", shard5="d", shard6="d")


def test_a_move_that_fails_lets_the_other_end_and_no_other_begin(fleet_four: Lab) -> None:
    plan = saved(fleet_four)
    execute(fleet_four, "c", "CREATE SCHEMA shard2")
    done = run(fleet_four, "rebalance", "apply", "--plan", plan, "--parallel", "2", "--yes")
    assert done.returncode == 1, done.stderr
    assert "schemas with the names of moved shards" in done.stderr
    assert of_group(fleet_four) == ["waiting", "done", "waiting"]
    execute(fleet_four, "c", "DROP SCHEMA shard2")
    done = run(fleet_four, "rebalance", "resume", "--yes", "--lock-wait", "1m")
    assert done.returncode == 0, done.stderr
    agreed(fleet_four, 4, shard2="c", shard5="d", shard6="d")
