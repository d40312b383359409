"""`rebalance` and `node drain`: plans of real fleets, their refusals, and a group that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.fleet import group
from shardctl.moves import follow
from tests.fixtures.fleets.balance import write_plan
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import replace_step
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.moves.own import Lab


def failed(done: CompletedProcess[str], code: int, *said: str) -> None:
    assert done.returncode == code, done.stderr
    for one in said:
        assert one in done.stderr


def test_a_plan_is_saved_and_refused_when_the_fleet_has_changed(fleet_8: Fleet) -> None:
    out = fleet_8.directory / "plan.json"
    file = str(out)
    given = ("--by", "count", "--node-weight", "a=3", "--out", file)
    done = fleet_8.here("rebalance", "plan", *given)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "3", "4", "->", "6"] in [row[:5] for row in rows]
    assert ["b", "a", "2", "6-7"] in [row[:4] for row in rows]
    assert "1 move of 2 shards" in done.stdout
    dry = fleet_8.here("rebalance", "apply", "--plan", file, "--dry-run")
    failed(dry, 1, "wal_level = replica")  # as the first move would be refused
    fleet_8.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard = 0")
    dry = fleet_8.here("rebalance", "apply", "--plan", file, "--dry-run")
    failed(dry, 1, "the map on node a gives shards 0 to b")
    fleet_8.execute("a", "UPDATE shardctl.map SET node = 'a' WHERE shard = 0")
    fleet_8.shards = {"a": "0-4", "b": "5-7"}
    done = fleet_8.here("rebalance", "apply", "--plan", file, "--yes")
    failed(done, 1, "has changed since the plan was made: shards 4 have other owners")


def test_what_is_no_plan_or_leaves_no_node_is_refused(fleet_8: Fleet) -> None:
    file = fleet_8.write()
    done = fleet_8.here("rebalance", "apply", "--plan", str(file), "--yes")
    failed(done, 2, "topology.yaml: it is not a plan of rebalance")
    done = fleet_8.here("rebalance", "apply", "--plan", str(file), "--by", "count", "--yes")
    failed(done, 2, "--plan excludes --by")
    done = fleet_8.here("rebalance", "plan", "--node-weight", "x=2")
    failed(done, 2, "unknown node 'x'", "nodes: a, b")
    for weight in ("a=-1", "a=1e-320"):
        done = fleet_8.here("rebalance", "plan", "--node-weight", weight)
        failed(done, 2, f"'{weight}' is not a node")
    by_hand = write_plan(fleet_8.directory / "plan.json", fleet_8.topology(), ("a", "x", [2]))
    done = fleet_8.here("rebalance", "apply", "--plan", by_hand, "--yes")
    failed(done, 1, "node x is not in the topology")
    done = fleet_8.here("rebalance", "plan", "--by", "tps", "--sample", "100ms")
    failed(done, 1, "no shard was read or written")
    failed(fleet_8.here("node", "drain", "b", "--node-weight", "a=0"), 2, "has weight 0")
    shards, fleet_8.shards = fleet_8.shards, {**fleet_8.shards, "c": "none"}
    with fleet_8.at_ports(c=free_ports(1)[0]):
        done = fleet_8.here("node", "drain", "b", "--node-weight", "a=0")
        failed(done, 2, "node c is left out", "Connection refused")
    fleet_8.shards = shards
    failed(fleet_8.here("rebalance", "status"), 2, "no rebalance has started yet")
    assert fleet_8.here("rebalance", "plan").stdout.splitlines()[-1].startswith("nothing to move")


def test_a_drain_for_whose_shards_no_node_has_room_is_not_done(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "ALTER SYSTEM SET max_wal_size = '1000TB'")
    fleet_8.execute("a", "SELECT pg_reload_conf()")
    try:
        wait_for(lambda: fleet_8.query("a", "SHOW max_wal_size") == [("1000TB",)])
        done = fleet_8.here("node", "drain", "b", "--yes", "-o", "json")
    finally:
        fleet_8.execute("a", "ALTER SYSTEM RESET max_wal_size")
        fleet_8.execute("a", "SELECT pg_reload_conf()")
    failed(done, 3, "node b keeps shards 4-7")
    assert json.loads(done.stdout)["moves"] == []


def saved(lab: Lab) -> str:
    """Write a plan by which a gives shard 2 to b, and b its shard 5 to a."""
    file = lab.directory / "plan.json"
    return write_plan(file, lab.topology, ("a", "b", [2]), ("b", "a", [5]))


def states(lab: Lab) -> list[Any]:
    done = lab.here("rebalance", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return [one["state"] for one in json.loads(done.stdout)["moves"]]


@pytest.mark.long
def test_a_group_of_moves_goes_on_where_it_was_interrupted_or_paused(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = saved(fleet_own)
    with monkeypatch.context() as patch:
        replace_step(patch, follow.STREAM_STEP, lambda _: lose())
        failed(fleet_own.here("rebalance", "apply", "--plan", plan, "--yes"), 3)
    assert states(fleet_own) == ["unfinished", "waiting"]
    with monkeypatch.context() as patch:
        unpaused = group._require_unpaused

        def paused_meanwhile(*given: Any) -> None:
            assert fleet_own.here("rebalance", "pause", "--yes").returncode == 0
            unpaused(*given)

        patch.setattr(group, "_require_unpaused", paused_meanwhile)
        failed(fleet_own.here("rebalance", "resume", "--yes"), 3, "is paused")
    assert states(fleet_own) == ["done", "waiting"]
    done = fleet_own.here("rebalance", "resume", "--yes")
    assert done.returncode == 0, done.stderr
    assert states(fleet_own) == ["done", "done"]
    assert [fleet_own.leads(alias) for alias in ("shard2", "shard5")] == ["b", "a"]
    assert left(fleet_own) == []
    assert fleet_own.problems() == []
    assert "is finished" in fleet_own.here("rebalance", "resume", "--yes").stdout
    done = fleet_own.here("rebalance", "apply", "--plan", plan, "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr  # its own moves are no change of the fleet
    assert json.loads(done.stdout)["moves"] == json.loads(Path(plan).read_text())["moves"]
