"""`node rename`: poolers, databases and the file get the new name, in an order that serves all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.state import lock
from shardctl.topology import loader
from tests.fixtures.fleets.joining import add, lose
from tests.fixtures.fleets.pooled import offered

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet

RENAME = ("node", "rename", "b", "berlin-2")


def refused(fleet: Fleet, *arguments: str, code: int = 1) -> str:
    before = fleet.file.read_bytes()
    done = fleet.here_as_written(*arguments, "--yes", "-o", "json")
    assert done.returncode == code, done.stderr
    assert fleet.file.read_bytes() == before
    assert json.loads(done.stdout)["errors"][0]["hint"]
    return done.stderr


def test_a_node_has_its_new_name_everywhere(fleet_pooled: PooledFleet) -> None:
    fleet = fleet_pooled
    before = fleet.write().read_text()
    planned = fleet.here_as_written(*RENAME, "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert fleet.file.read_text() == before
    done = fleet.here_as_written(*RENAME, "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["node"], told["new_name"]) == ("done", "b", "berlin-2")
    assert told["changes"] == json.loads(planned.stdout)["changes"]
    assert fleet.file.read_text() == before.replace("\n  b: {", "\n  berlin-2: {")
    for node in "ab":
        owners = dict(fleet.query(node, "SELECT shard, node FROM shardctl.map"))
        assert set(owners.values()) == {"a", "berlin-2"}
        assert owners[5] == "berlin-2"
        assert fleet.query(node, "SELECT map_version FROM shardctl.cluster") == [(2,)]
    assert fleet.query("b", "SELECT node FROM shardctl.cluster") == [("berlin-2",)]
    aliases = offered(fleet.pg_bouncer)
    assert aliases[f"{fleet.database}_berlin-2"] == fleet.servers["b"].port
    assert f"{fleet.database}_b" not in aliases
    assert "nothing to do" in fleet.here_as_written("init").stdout
    again = fleet.here_as_written(*RENAME, "--yes")
    assert again.stdout == "nothing to do: node berlin-2 has this name everywhere\n"


def test_the_old_alias_can_stay(fleet_pooled: PooledFleet) -> None:
    fleet = fleet_pooled
    fleet.write()
    done = fleet.here_as_written(*RENAME, "--keep-alias", "--yes")
    assert done.returncode == 0, done.stderr
    port = fleet.servers["b"].port
    aliases = offered(fleet.pg_bouncer)
    assert aliases[f"{fleet.database}_b"] == aliases[f"{fleet.database}_berlin-2"] == port
    assert fleet.here_as_written("pgbouncer", "apply", "--yes").returncode == 0
    assert f"{fleet.database}_b" not in offered(fleet.pg_bouncer)


def test_a_run_that_stopped_half_way_is_finished(fleet_8: Fleet) -> None:
    fleet_8.execute("b", "UPDATE shardctl.cluster SET node = 'berlin-2', map_version = 2")
    fleet_8.execute("b", "UPDATE shardctl.map SET node = 'berlin-2' WHERE node = 'b'")
    assert fleet_8.here_as_written("init").returncode == 1
    done = fleet_8.here_as_written(*RENAME, "--yes")
    assert done.returncode == 0, done.stderr
    for node in "ab":
        assert fleet_8.query(node, "SELECT map_version FROM shardctl.cluster") == [(2,)]
    assert "nothing to do" in fleet_8.here_as_written("init").stdout


def test_an_empty_member_is_renamed_without_a_new_version_of_the_map(fleet_joining: Fleet) -> None:
    assert fleet_joining.here_as_written(*add(fleet_joining), "--yes").returncode == 0
    done = fleet_joining.here_as_written("node", "rename", "c", "d", "--yes")
    assert done.returncode == 0, done.stderr
    row = "SELECT node, map_version FROM shardctl.cluster"
    assert fleet_joining.query("c", row) == [("d", 1)]
    assert "nothing to do" in fleet_joining.here_as_written("init").stdout


def test_bad_names_are_refused(fleet_8: Fleet) -> None:
    for old, new, said in (
        ("x", "y", "unknown node 'x'"),
        ("a", "b", "has a node b already"),
        ("a", "ü", "nodes."),
        ("a", "b c", "nodes."),
    ):
        assert said in refused(fleet_8, "node", "rename", old, new, code=2)


def test_a_node_that_is_down_or_in_use_is_named(fleet_8: Fleet) -> None:
    topology = loader.load(fleet_8.file)
    with lock.held(topology, [next(iter(topology.nodes))], command="init"):
        assert "node a is being changed by shardctl init" in refused(fleet_8, *RENAME)
    fleet_8.execute("b", "CREATE SCHEMA shard1__retired_0123abcd")
    assert "1 retired copies wait there" in refused(fleet_8, *RENAME)
    lose(fleet_8, "a")
    assert "node a (127.0.0.1:" in refused(fleet_8, *RENAME)
