"""Nodes that go or get another name: their drains go along, and open rebalances refuse them."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from shardctl.state import rebalances
from shardctl.topology import loader
from tests.fixtures.fleets.grouped import begun
from tests.fixtures.fleets.joining import add, lose

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

DRAIN = "SELECT node, revision, is_active, who FROM shardctl.drain ORDER BY node"
RENAME = ("node", "rename", "b", "berlin")


@pytest.fixture
def joined(fleet_joining: Fleet) -> Fleet:
    """Give a fleet with an empty node c."""
    done = fleet_joining.here_as_written(*add(fleet_joining), "--yes")
    assert done.returncode == 0, done.stderr
    return fleet_joining


def drain(fleet: Fleet, node: str, *, revision: int = 1, active: bool = True) -> None:
    for one in fleet.servers:
        row = f"('{node}', {revision}, {active}, 'ann@ops1', now())"
        fleet.execute(one, f"INSERT INTO shardctl.drain VALUES {row}")


def drained(fleet: Fleet) -> list[str]:
    status = fleet.here_as_written("rebalance", "status", "-o", "json")
    assert status.returncode == 0, status.stderr
    return [one["node"] for one in json.loads(status.stdout)["drained"]]


def run(fleet: Fleet, *command: str) -> list[str]:
    """Run a command as planned, and give what it changes of drains."""
    planned = fleet.here_as_written(*command, "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    done = fleet.here_as_written(*command, "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["changes"] == json.loads(planned.stdout)["changes"]
    return [one["action"] for one in told["changes"] if one["kind"] == "drain"]


def refused(fleet: Fleet, *command: str) -> str:
    before = fleet.file.read_bytes()
    for how in ("--dry-run", "--yes"):
        done = fleet.here_as_written(*command, how, "-o", "json")
        assert done.returncode == 1, done.stderr
        assert fleet.file.read_bytes() == before
    return done.stderr


def test_a_later_node_of_a_removed_nodes_name_does_not_begin_drained(joined: Fleet) -> None:
    drain(joined, "c")
    assert drained(joined) == ["c"]
    again = json.loads(
        joined.here_as_written("node", "remove", "c", "--dry-run", "-o", "json").stdout
    )["add_again"]
    assert run(joined, "node", "remove", "c") == ["drop"]
    for node in "abc":
        assert [row[:3] for row in joined.query(node, DRAIN)] == [("c", 2, False)]
    assert joined.here_as_written(*shlex.split(again)[1:], "--yes").returncode == 0
    assert drained(joined) == []
    joined.execute("b", "UPDATE shardctl.drain SET revision = 1, is_active = true")
    assert drained(joined) == [], "a node that was away brings nothing back"


def test_a_lost_node_leaves_no_drain_behind(joined: Fleet) -> None:
    drain(joined, "c")
    lose(joined, "c")
    assert run(joined, "node", "remove", "c", "--lost") == ["drop"]
    for node in "ab":
        assert [row[:3] for row in joined.query(node, DRAIN)] == [("c", 2, False)]


def test_a_node_without_a_drain_is_removed_without_a_row(joined: Fleet) -> None:
    assert run(joined, "node", "remove", "c") == []
    assert joined.query("a", DRAIN) == []


def test_a_renamed_node_stays_drained(fleet_8: Fleet) -> None:
    drain(fleet_8, "b")
    drain(fleet_8, "berlin", revision=4, active=False)  # an earlier node of this name
    assert run(fleet_8, *RENAME) == ["rename"]
    for node in "ab":
        rows = fleet_8.query(node, DRAIN)
        assert [row[:3] for row in rows] == [("b", 2, False), ("berlin", 5, True)]
        assert rows[1][3] == "ann@ops1"
    assert drained(fleet_8) == ["berlin"]


def test_a_rename_that_was_killed_behind_the_drain_keeps_it(fleet_8: Fleet) -> None:
    drain(fleet_8, "b", revision=2, active=False)
    drain(fleet_8, "berlin")
    assert run(fleet_8, *RENAME) == []
    assert drained(fleet_8) == ["berlin"]


def test_a_node_that_an_open_rebalance_names_is_refused(joined: Fleet) -> None:
    begun(joined, source="a", target="c")
    for command in (("node", "remove", "c"), ("node", "rename", "a", "x")):
        said = refused(joined, *command)
        assert "rebalance 5f3a9c1e is not finished (ann@ops1 began it)" in said
        assert f"names node {command[2]}" in said
        assert "`shardctl rebalance resume` to finish it, or `shardctl rebalance abort`" in said
    assert joined.here_as_written(*RENAME, "--dry-run").returncode == 0
    assert joined.here_as_written("rebalance", "abort", "--yes").returncode == 0
    assert run(joined, "node", "remove", "c") == []


def test_a_node_that_a_rebalance_drains_is_refused(joined: Fleet) -> None:
    begun(joined, source="a", target="b")
    for node in joined.servers:
        joined.execute(
            node, "UPDATE shardctl.rebalance SET plan = jsonb_set(plan, '{drain}', '\"c\"')"
        )
    assert "names node c" in refused(joined, "node", "remove", "c")


def test_a_lost_node_that_an_open_rebalance_names_keeps_its_shards(fleet_8: Fleet) -> None:
    begun(fleet_8, source="b", target="a")
    lose(fleet_8, "b")
    said = refused(fleet_8, "node", "lost", "b", "--to", "a")
    assert "names node b" in said
    assert "run `shardctl rebalance abort`" in said
    assert "resume" not in said
    assert fleet_8.here_as_written("rebalance", "abort", "--yes").returncode == 0
    done = fleet_8.here_as_written("node", "lost", "b", "--to", "a", "--yes")
    assert done.returncode == 0, done.stderr


def test_nothing_changes_while_a_rebalance_is_carried_out(joined: Fleet) -> None:
    begun(joined, source="a", target="b")
    topology = loader.load(joined.file)
    before = joined.file.read_bytes()
    with rebalances.held(topology, topology.nodes, command="rebalance apply"):
        for command in (("node", "remove", "c"), ("node", "rename", "c", "d")):
            done = joined.here_as_written(*command, "--yes")
            assert done.returncode == 1
            assert "shardctl rebalance apply by" in done.stderr
    assert joined.file.read_bytes() == before
