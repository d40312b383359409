"""`rebalance` between real servers: carried out, paused, killed at any moment, and resumed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.balanced import as_json, begin, call, end, owned, unheld, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.own import Lab

APPLY = ("rebalance", "apply", "--by", "count")
"""Two moves: a shard of a and one of b go to c."""
EVEN = {"a": 3, "b": 3, "c": 2, "d": 0}


def shown(lab: Lab) -> tuple[str, int, list[str]]:
    """Give the state of the rebalance, how many moves are done, and the state of each."""
    found = as_json(lab, "rebalance", "status")["rebalance"]
    return found["state"], found["moves_done"], [one["state"] for one in found["moves"]]


def prove_even(lab: Lab) -> None:
    """See that all moves are done, each once, and that the fleet is as it should be."""
    assert owned(lab) == EVEN
    assert shown(lab) == ("done", 2, ["done", "done"])
    moves = as_json(lab, "moves", "list")["moves"]
    assert [one["state"] for one in moves] == ["done", "done"]
    assert [one["reverse"] for one in moves] == [None, None]
    for node in "abc":
        assert lab.ask(node, "SELECT slot_name FROM pg_replication_slots") == []
        assert lab.ask(node, "SELECT state FROM shardctl.rebalance") == [("done",)]
    assert lab.problems() == []
    assert as_json(lab, "rebalance", "plan", "--by", "count")["moves"] == []


def test_a_new_node_gets_its_share(fleet_uneven: Lab) -> None:
    assert call(fleet_uneven, *APPLY, "--dry-run").returncode == 0
    assert owned(fleet_uneven)["c"] == 0
    done = call(fleet_uneven, *APPLY)
    assert done.returncode == 0, done.stderr
    prove_even(fleet_uneven)


@pytest.mark.parametrize(
    "moment", ["move 1 of 2: begin", ": copy:", ": cutover:", ": retire:", "move 2 of 2: begin"]
)
def test_it_is_killed_and_another_operator_resumes_it(fleet_uneven: Lab, moment: str) -> None:
    process = begin(fleet_uneven, *APPLY)
    until(process, moment)
    process.send_signal(signal.SIGKILL)
    end(process)
    unheld(fleet_uneven)
    state, done, _ = shown(fleet_uneven)
    assert state == "unfinished"
    again = call(fleet_uneven, *APPLY)
    assert again.returncode == 1
    assert "is not finished" in again.stderr or "unfinished" in again.stderr
    resumed = call(fleet_uneven, "rebalance", "resume")
    assert resumed.returncode == 0, (done, resumed.stderr)
    prove_even(fleet_uneven)


def test_ctrl_c_between_moves_stops_it(fleet_uneven: Lab) -> None:
    process = begin(fleet_uneven, *APPLY)
    until(process, "move 2 of 2: begin")
    process.send_signal(signal.SIGINT)
    code, said = end(process)
    assert code == 130
    assert "1 of 2 moves are done" in said
    assert "shardctl rebalance resume" in said
    assert call(fleet_uneven, "rebalance", "resume").returncode == 0
    prove_even(fleet_uneven)


def test_another_operator_pauses_it_and_two_do_not_run_it(fleet_uneven: Lab) -> None:
    process = begin(fleet_uneven, *APPLY)
    until(process, ": copy:")
    for words in (("resume",), ("apply", "--by", "count")):
        other = call(fleet_uneven, "rebalance", *words)
        assert other.returncode == 1, other.stderr
        assert "by shardctl rebalance apply" in other.stderr or "began it" in other.stderr
    paused = call(fleet_uneven, "rebalance", "pause")
    assert paused.returncode == 0, paused.stderr
    assert "stops before its next move" in paused.stderr
    code, said = end(process)
    assert code == 3
    assert "an operator has paused it" in said
    assert shown(fleet_uneven) == ("paused", 1, ["done", "waiting"])
    status = as_json(fleet_uneven, "status")
    assert [one["state"] for one in status["rebalances"]] == ["paused"]
    assert call(fleet_uneven, "rebalance", "resume").returncode == 0
    prove_even(fleet_uneven)


def test_an_aborted_move_begins_again_and_the_rest_can_be_left_out(fleet_uneven: Lab) -> None:
    process = begin(fleet_uneven, *APPLY)
    until(process, ": copy:")
    process.send_signal(signal.SIGKILL)
    end(process)
    unheld(fleet_uneven)
    assert call(fleet_uneven, "moves", "abort").returncode == 0
    assert shown(fleet_uneven)[2] == ["aborted", "waiting"]
    process = begin(fleet_uneven, "rebalance", "resume")
    until(process, ": copy:")
    assert call(fleet_uneven, "rebalance", "abort").returncode == 0
    assert end(process)[0] == 3
    assert shown(fleet_uneven) == ("aborted", 1, ["done", "waiting"])
    assert call(fleet_uneven, "rebalance", "resume").returncode == 2
    assert call(fleet_uneven, *APPLY).returncode == 0
    assert owned(fleet_uneven) == EVEN


def test_a_node_disappears_before_a_saved_plan_and_in_the_middle(
    fleet_uneven: Lab, tmp_path: Path
) -> None:
    file = str(tmp_path / "plan.json")
    as_json(fleet_uneven, "rebalance", "plan", "--by", "count", "--out", file)
    fleet_uneven.server("c").stop(mode="fast")
    refused = call(fleet_uneven, "rebalance", "apply", "--plan", file)
    assert refused.returncode == 1
    assert "node c" in refused.stderr
    assert fleet_uneven.ask("a", "SELECT count(*) FROM shardctl.rebalance") == [(0,)]
    fleet_uneven.server("c").start()
    process = begin(fleet_uneven, "rebalance", "apply", "--plan", file)
    until(process, "move 2 of 2: begin")
    fleet_uneven.server("c").stop(mode="immediate")
    code, said = end(process)
    assert code == 3, said
    assert "node c" in said
    assert call(fleet_uneven, "rebalance", "resume").returncode == 1
    fleet_uneven.server("c").start()
    resumed = call(fleet_uneven, "rebalance", "resume")
    assert resumed.returncode == 0, resumed.stderr
    prove_even(fleet_uneven)
    stale = call(fleet_uneven, "rebalance", "apply", "--plan", file)
    assert stale.returncode == 1
    assert "went from node a to node c" in stale.stderr


def test_a_drain_names_what_stays_and_is_continued_and_cancelled(fleet_uneven: Lab) -> None:
    room = ("--node-room", "b=30kB", "--node-room", "c=1kB")
    some = call(fleet_uneven, "node", "drain", "a", *room)
    assert some.returncode == 3, some.stderr
    assert "node a still has shards" in some.stderr
    assert "no other node has room for them" in some.stderr
    assert 0 < owned(fleet_uneven)["a"] < 4
    nodes = {one["name"]: one["drained"] for one in as_json(fleet_uneven, "status")["nodes"]}
    assert nodes == {"a": True, "b": False, "c": False, "d": False}
    process = begin(fleet_uneven, "node", "drain", "a")
    until(process, ": copy:")
    process.send_signal(signal.SIGKILL)
    end(process)
    unheld(fleet_uneven)
    again = call(fleet_uneven, "node", "drain", "a")
    assert again.returncode == 1
    assert "is not finished" in again.stderr
    assert call(fleet_uneven, "rebalance", "resume").returncode == 0
    assert owned(fleet_uneven)["a"] == 0
    planned = as_json(fleet_uneven, "rebalance", "plan", "--by", "count")
    assert "a" not in {one["target"] for one in planned["moves"]}
    assert call(fleet_uneven, "node", "drain", "a").returncode == 0
    process = begin(fleet_uneven, "node", "drain", "b")
    until(process, ": copy:")
    cancelled = call(fleet_uneven, "node", "drain", "b", "--cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    assert "ends before its next move" in cancelled.stderr
    code, _ = end(process)
    assert code in (0, 3)  # there may be no next move
    assert as_json(fleet_uneven, "rebalance", "status")["rebalance"]["state"] in ("aborted", "done")
    assert fleet_uneven.problems() == []
