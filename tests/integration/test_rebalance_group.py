"""A rebalance that the databases know: shown, continued, paused and ended, without a move."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardctl.balance import carry, group
from shardctl.errors import Refused
from shardctl.moves.plan import Options
from shardctl.state import rebalances
from shardctl.state.lock import NodeLocked
from shardctl.state.rebalances import GroupState
from shardctl.topology import loader
from tests.fixtures.fleets.grouped import begun

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

STATES = "SELECT revision, state FROM shardctl.rebalance"


def shown(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fleet.here("rebalance", "status", "-o", "json").stdout)
    group: dict[str, Any] = found["rebalance"]
    return group


def test_every_operator_sees_it_and_can_pause_and_end_it(fleet_8: Fleet) -> None:
    begun(fleet_8, source="a", target="b")
    assert shown(fleet_8)["state"] == "unfinished"
    assert [one["state"] for one in shown(fleet_8)["moves"]] == ["waiting"]
    status = fleet_8.here("status", "--sample", "0")
    assert "rebalance 5f3a9c1e: unfinished, 0 of 1 moves done, started by ann@ops1" in status.stdout
    refused = fleet_8.here("rebalance", "apply", "--by", "count", "--node-weight", "b=3", "--yes")
    assert refused.returncode == 1
    assert "rebalance 5f3a9c1e is not finished (ann@ops1 began it)" in refused.stderr
    assert fleet_8.here("rebalance", "pause", "--dry-run").returncode == 0
    assert fleet_8.query("a", STATES) == [(1, "running")]
    assert fleet_8.here("rebalance", "pause", "--yes").returncode == 0
    assert fleet_8.query("a", STATES) == fleet_8.query("b", STATES) == [(2, "paused")]
    assert shown(fleet_8)["state"] == "paused"
    assert fleet_8.here("rebalance", "abort", "--yes").returncode == 0
    assert fleet_8.query("a", STATES) == fleet_8.query("b", STATES) == [(3, "aborted")]
    fleet_8.execute("b", "UPDATE shardctl.rebalance SET state = 'running', revision = 1")
    assert shown(fleet_8)["state"] == "aborted", "a node that was away brings nothing back"


def test_shards_on_a_third_node_stop_it(fleet_8: Fleet) -> None:
    begun(fleet_8, source="b", target="c")
    done = fleet_8.here("rebalance", "resume", "--yes")
    assert done.returncode == 1
    assert "shards 0-1 are on node a, and the next move takes them from node b" in done.stderr
    dry = fleet_8.here("rebalance", "resume", "--dry-run")
    assert (dry.returncode, dry.stderr) == (1, done.stderr)


def test_a_second_operator_is_refused_also_in_a_dry_run(fleet_8: Fleet) -> None:
    begun(fleet_8, source="a", target="b")
    topology = loader.load(fleet_8.file)
    with rebalances.held(topology, topology.nodes, command="rebalance apply"):
        assert shown(fleet_8)["state"] == "running"
        for how in ("--dry-run", "--yes"):
            done = fleet_8.here("rebalance", "resume", how)
            assert done.returncode == 1
            assert "carried out by shardctl rebalance apply by" in done.stderr
        assert fleet_8.here("rebalance", "pause", "--yes").returncode == 0
        assert shown(fleet_8)["state"] == "pausing"


def test_shards_that_are_on_their_target_are_left_out(fleet_8: Fleet) -> None:
    begun(fleet_8, source="b", target="a")
    done = fleet_8.here("rebalance", "resume", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "shards 0-1 are already on node a" in done.stderr
    assert json.loads(done.stdout)["rebalance"]["state"] == "done"
    assert fleet_8.query("a", STATES) == [(3, "done")]


def test_a_plan_of_another_version_is_not_continued(fleet_8: Fleet) -> None:
    begun(fleet_8, source="a", target="b")
    for node in fleet_8.servers:
        fleet_8.execute(node, "UPDATE shardctl.rebalance SET plan = plan - 'moves'")
    done = fleet_8.here("rebalance", "resume", "--yes")
    assert done.returncode == 1
    assert "cannot read its plan" in done.stderr


def test_a_move_names_the_rebalance_that_it_belongs_to(fleet_8: Fleet) -> None:
    begun(fleet_8, source="a", target="b")
    for move in ("aaaaaaaa", "bbbbbbbb"):
        fleet_8.execute(
            "a",
            "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas,"
            f" retired, plan, who, ended) VALUES ('{move}', 'aborted', 'stream', 'a', 'b',"
            f" '{{0,1}}', '{{shard0,shard1}}', '{{shard0__retired_{move},shard1__retired_{move}}}',"
            """ '{"options": {"retain_s": 0}}', 'ann@ops1', now())""",
        )
    assert fleet_8.here("rebalance", "abort", "--yes").returncode == 0
    for move, its in {"aaaaaaaa": "5f3a9c1e", "bbbbbbbb": None}.items():
        done = fleet_8.here("moves", "show", move, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rebalance"] == its
        shown = fleet_8.here("moves", "show", move).stdout
        assert ("one move of rebalance 5f3a9c1e" in shown) == (its is not None)


def test_a_drain_that_is_refused_records_nothing(fleet_8: Fleet) -> None:
    topology = loader.load(fleet_8.file)
    plan = group.of_json(
        json.loads(fleet_8.here("rebalance", "plan", "--by", "count", "-o", "json").stdout)
    )
    called: list[object] = []
    with (
        rebalances.held(topology, topology.nodes, command="rebalance apply"),
        pytest.raises(NodeLocked, match="is being changed by shardctl rebalance apply"),
    ):
        carry.start(
            topology,
            replace(plan, drain="b", moves=()),
            Options(5.0, 0.0),
            cast("carry.Shown", None),
            command="node drain",
            on_startable=called.append,
        )
    assert not called


def test_a_decision_counts_for_the_state_that_the_rebalance_has_by_then(fleet_8: Fleet) -> None:
    begun(fleet_8, source="a", target="b")
    topology = loader.load(fleet_8.file)
    assert fleet_8.here("rebalance", "pause", "--yes").returncode == 0
    carry.decide(topology, "5f3a9c1e", GroupState.aborted, print, "rebalance abort")
    assert fleet_8.query("a", STATES) == [(3, "aborted")]
    with pytest.raises(Refused, match="rebalance 5f3a9c1e is over"):
        carry.decide(topology, "5f3a9c1e", GroupState.paused, print, "rebalance pause")
    assert fleet_8.query("a", STATES) == [(3, "aborted")]
