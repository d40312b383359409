"""`rebalance` and `node drain` before anything moves: what they look at, print and refuse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardctl.state.format import FORMAT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet

PLANNED = {
    "format", "cluster", "by", "drain", "fleet", "nodes", "moves", "stuck", "moves_left_out",
    "notes", "options",
}  # fmt: skip


def plan(fleet: Fleet, *words: str) -> dict[str, Any]:
    done = fleet.here("rebalance", "plan", *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_even_fleet_plans_nothing(fleet_8: Fleet) -> None:
    found = plan(fleet_8, "--by", "count")
    assert set(found) == PLANNED
    assert found["moves"] == found["stuck"] == []
    assert [(one["name"], one["shard_count"]) for one in found["nodes"]] == [("a", 4), ("b", 4)]
    assert all(one["size_bytes"] > 0 for one in found["nodes"])
    done = fleet_8.here("rebalance", "plan", "--by", "count")
    assert "every node has its share" in done.stdout


def test_weights_make_moves_with_their_times_and_reasons(fleet_8: Fleet) -> None:
    found = plan(fleet_8, "--by", "count", "--node-weight", "b=3", "--max-moves", "1")
    [move] = found["moves"]
    assert (move["source"], move["target"], len(move["shards"])) == ("a", "b", 2)
    assert move["size_bytes"] > 0
    assert move["predicted_copy_s"] > 0
    assert move["predicted_pause_ms"] > 0
    assert "100% above its share" in move["why"]
    assert fleet_8.query("a", "SELECT count(*) FROM shardctl.rebalance") == [(0,)]


def test_a_weight_of_0_and_no_room_name_what_stays(fleet_8: Fleet) -> None:
    words = ("--node-weight", "a=0", "--node-room", "b=1kB")
    found = plan(fleet_8, *words)
    assert found["moves"] == []
    assert [one["shard"] for one in found["stuck"]] == [0, 1, 2, 3]
    done = fleet_8.here("rebalance", "plan", *words)
    assert "stays on node a: no node has room for it" in done.stderr


def test_by_operations_a_second(fleet_8: Fleet) -> None:
    found = plan(fleet_8, "--by", "tps", "--sample", "100ms")
    assert found["by"] == "tps"


REFUSED = [
    (("plan", "--node-weight", "x=1"), 2, "unknown node 'x'"),
    (("plan", "--node-weight", "a"), 2, "it has no NODE=VALUE"),
    (("plan", "--node-weight", "a=-1"), 2, "is not a weight"),
    (("plan", "--node-weight", "a=nan"), 2, "is not a weight"),
    (("plan", "--node-weight", "a=1", "--node-weight", "a=2"), 2, "another value already"),
    (("plan", "--node-room", "a=much"), 2, "invalid value 'a=much'"),
    (("plan", "--threshold", "10"), 2, "is not a percentage"),
    (("plan", "--node-weight", "a=0", "--node-weight", "b=0"), 1, "no other node can have"),
    (("apply", "--plan", "/nonexistent/plan.json", "--yes"), 2, "No such file"),
    (("pause", "--yes"), 2, "no rebalance is open"),
    (("resume", "--yes"), 2, "no rebalance is open"),
    (("abort", "--yes"), 2, "no rebalance is open"),
]


def test_bad_input_is_refused(fleet_8: Fleet, tmp_path: Path) -> None:
    for words, code, message in REFUSED:
        done = fleet_8.here("rebalance", *words)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    file = tmp_path / "plan.json"
    for text in ("", "{}", "[1]", '{"format": 1', '{"format": "x"}', "\0"):
        file.write_text(text)
        done = fleet_8.here("rebalance", "apply", "--plan", str(file), "--yes")
        assert done.returncode == 2
        assert f"{file}: it is not a plan" in done.stderr


def test_a_saved_plan_is_refused_when_its_fleet_has_changed(fleet_8: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    fleet_8.here("rebalance", "plan", "--by", "count", "--node-weight", "b=3", "--out", str(file))
    saved = json.loads(file.read_text())
    assert saved["moves"]
    saved["cluster"] = "other"
    changed = {
        "it is for cluster other": {"cluster": "other"},
        "node z is no longer in the topology": {"fleet": [*saved["fleet"], _node("z")]},
        "node b is new": {"fleet": saved["fleet"][:1]},
        "node b was at 10.0.0.1:5432": {"fleet": [saved["fleet"][0], _node("b")]},
        "shards 7 went from node a to node b": {
            "fleet": [saved["fleet"][0] | {"shards": [0, 1, 2, 3, 7]}, saved["fleet"][1]]
        },
        "node b is no longer drained": {
            "fleet": [saved["fleet"][0], saved["fleet"][1] | {"drained": True}]
        },
        "move 1 takes shards 5, which node a lacks": {
            "moves": [saved["moves"][0] | {"shards": [5]}]
        },
    }
    for message, difference in changed.items():
        file.write_text(json.dumps(saved | {"cluster": "test"} | difference))
        done = fleet_8.here("rebalance", "apply", "--plan", str(file), "--yes")
        assert (done.returncode, message in done.stderr) == (1, True), (message, done.stderr)


def test_a_plan_that_cannot_be_saved_says_why(fleet_8: Fleet) -> None:
    done = fleet_8.here("rebalance", "plan", "--by", "count", "--out", "/nonexistent/plan.json")
    assert done.returncode == 1
    assert "/nonexistent/plan.json: No such file or directory" in done.stderr


def test_a_node_of_an_older_format_keeps_no_rebalance(fleet_8: Fleet) -> None:
    for node in fleet_8.servers:
        fleet_8.execute(
            node,
            "DROP TABLE shardctl.rebalance, shardctl.drain, shardctl.rollout, "
            "shardctl.migration_begun; "
            "UPDATE shardctl.cluster SET format = 4",
        )
    words = ("--by", "count", "--node-weight", "b=3")
    assert plan(fleet_8, *words)["moves"]
    done = fleet_8.here("rebalance", "apply", *words, "--yes")
    assert done.returncode == 1
    assert "has no tables for rebalances" in done.stderr
    assert fleet_8.here("init", "--yes").returncode == 0
    assert fleet_8.query("a", "SELECT format FROM shardctl.cluster") == [(FORMAT,)]
    status = fleet_8.here("rebalance", "status", "-o", "json")
    assert json.loads(status.stdout) == {"format": 1, "rebalance": None, "drained": []}


def test_a_drain_needs_another_node_and_a_known_one(fleet_8: Fleet) -> None:
    for words, code, message in (
        (("drain", "x", "--yes"), 2, "unknown node 'x'"),
        (("drain", "x", "--cancel", "--yes"), 2, "unknown node 'x'"),
        (("drain", "a", "--cancel", "--yes"), 1, "node a is not drained"),
    ):
        done = fleet_8.here("node", *words)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    fleet_8.execute("a", "INSERT INTO shardctl.drain VALUES ('b', 1, true, 'ann@ops1', now())")
    done = fleet_8.here("node", "drain", "a", "--yes")
    assert done.returncode == 1
    assert "node a cannot be drained: no other node can have shards" in done.stderr
    done = fleet_8.here("rebalance", "plan", "--node-weight", "b=1")
    assert done.returncode == 2
    assert "node b is drained, so it has no weight" in done.stderr
    done = fleet_8.here("node", "drain", "b", "--cancel", "--yes")
    assert done.returncode == 0, done.stderr
    kept = "SELECT revision, is_active FROM shardctl.drain"
    assert fleet_8.query("a", kept) == fleet_8.query("b", kept) == [(2, False)]
    assert fleet_8.query("b", "SELECT command FROM shardctl.event WHERE command LIKE 'node%'") == [
        ("node drain",)
    ]


def _node(name: str) -> dict[str, Any]:
    shards = [4, 5, 6, 7] if name == "b" else []
    return {"name": name, "host": "10.0.0.1", "port": 5432, "shards": shards, "drained": False}
