"""`node remove`: an empty node goes, and can come back; whatever it still has is named."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from shardctl.state import lock
from shardctl.topology import loader
from tests.fixtures.fleets.joining import add, lose
from tests.fixtures.fleets.pooled import offered
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet

REMOVE = ("node", "remove", "c")


@pytest.fixture
def joined(fleet_joining: Fleet) -> Fleet:
    """Give a fleet with an empty node c."""
    done = fleet_joining.here_as_written(*add(fleet_joining), "--yes")
    assert done.returncode == 0, done.stderr
    return fleet_joining


def refused(fleet: Fleet, *arguments: str, code: int = 1) -> str:
    before = fleet.file.read_bytes()
    done = fleet.here_as_written(*arguments, "--yes", "-o", "json")
    assert done.returncode == code, done.stderr
    assert fleet.file.read_bytes() == before
    told = json.loads(done.stdout)
    assert told["state"] == "refused"
    assert told["errors"][0]["hint"]
    return done.stderr


def test_a_node_goes_and_comes_back_by_the_line_that_is_printed(joined: Fleet) -> None:
    with_node = joined.file.read_text()
    planned = joined.here_as_written(*REMOVE, "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert joined.file.read_text() == with_node
    done = joined.here_as_written(*REMOVE, "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["state"] == "done"
    assert told["changes"] == json.loads(planned.stdout)["changes"]
    assert "c" not in loader.load(joined.file).nodes
    assert joined.query("c", "SELECT count(*) FROM shardctl.map") == [(0,)]
    assert joined.query("c", "SELECT map_version FROM shardctl.cluster") == [(0,)]
    for node in "abc":
        events = joined.query(node, "SELECT result FROM shardctl.event ORDER BY id DESC LIMIT 1")
        assert events == [("node c: removed",)]
    again = told["add_again"]
    assert f"to add it back: `{again}`" in done.stderr
    back = joined.here_as_written(*shlex.split(again)[1:], "--yes")
    assert back.returncode == 0, back.stderr
    assert joined.file.read_text() == with_node
    assert joined.query("c", "SELECT count(*) FROM shardctl.map") == [(8,)]
    assert "nothing to do" in joined.here_as_written("init").stdout


def test_poolers_do_not_offer_a_removed_node(fleet_joining_pooled: PooledFleet) -> None:
    fleet = fleet_joining_pooled
    for command in (add(fleet), REMOVE):
        done = fleet.here_as_written(*command, "--yes")
        assert done.returncode == 0, done.stderr
    assert f"{fleet.database}_c" not in offered(fleet.pg_bouncer)
    assert f"{fleet.database}_a" in offered(fleet.pg_bouncer)
    assert "nothing to do" in fleet.here_as_written("pgbouncer", "apply", "--yes").stdout


def test_a_node_with_shards_is_refused(joined: Fleet) -> None:
    said = refused(joined, "node", "remove", "a")
    assert "node a is not empty: it owns shards 0-3" in said
    assert "move-shards --from a --all" in said


def test_an_unknown_node_is_refused(joined: Fleet) -> None:
    assert "unknown node 'x'" in refused(joined, "node", "remove", "x", code=2)


def test_a_topology_that_the_map_contradicts_is_refused(joined: Fleet) -> None:
    for node in "abc":
        joined.execute(node, "UPDATE shardctl.map SET node = 'c' WHERE shard IN (2, 3)")
    said = refused(joined, *REMOVE)
    assert "the map on node a gives shards 2-3 to c, the topology gives them to a" in said


def test_a_topology_that_gives_it_shards_that_others_own_is_refused(joined: Fleet) -> None:
    text = joined.file.read_text().replace("'0-3'", "'0-1'").replace("shards: none", "shards: 2-3")
    joined.file.write_text(text)
    said = refused(joined, *REMOVE)
    assert "the map on node a gives shards 2-3 to a, the topology gives them to c" in said
    assert "use the newest topology file" in said


def test_schemas_of_shards_are_named(joined: Fleet) -> None:
    joined.execute("c", "CREATE SCHEMA shard1; CREATE SCHEMA shard2; CREATE SCHEMA shard7")
    assert "it has live schemas of shards 1-2, 7" in refused(joined, *REMOVE)


def test_retired_copies_and_what_moves_have_left_are_named(joined: Fleet) -> None:
    joined.execute("c", "CREATE SCHEMA shard1__retired_0123abcd")
    joined.execute("c", "SELECT pg_create_physical_replication_slot('shardctl_0123abcd')")
    try:
        said = refused(joined, *REMOVE)
        assert "1 retired copy waits there for `shardctl prune`" in said
        assert "moves have left slot shardctl_0123abcd" in said
        assert "shardctl moves doctor" in said
        said = refused(joined, *REMOVE, "--prune")
        assert "no move in this cluster's journal retired it" in said
    finally:
        joined.execute("c", "SELECT pg_drop_replication_slot('shardctl_0123abcd')")


def test_a_node_that_is_down_is_refused_unless_it_is_lost(joined: Fleet) -> None:
    assert "a server answers at 127.0.0.1:" in refused(joined, *REMOVE, "--lost")
    lose(joined, "c")
    said = refused(joined, *REMOVE)
    assert "nothing proves that the node is empty" in said
    assert "node remove c --lost" in said
    done = joined.here_as_written(*REMOVE, "--lost", "--yes")
    assert done.returncode == 0, done.stderr
    assert "c" not in loader.load(joined.file).nodes


def test_a_lost_node_with_shards_is_refused(joined: Fleet) -> None:
    lose(joined, "b")
    said = refused(joined, "node", "remove", "b", "--lost")
    assert "node b is not empty: it owns shards 4-7" in said
    assert "docs/howto/node-lost.md" in said


def test_a_server_without_the_database_is_removed(joined: Fleet) -> None:
    with joined.servers["c"].connect() as session:
        session.execute(f"DROP DATABASE {joined.database}".encode())
    done = joined.here_as_written(*REMOVE, "--yes")
    assert done.returncode == 0, done.stderr
    assert "c" not in loader.load(joined.file).nodes


def test_a_place_for_a_clone_is_removed_as_lost(fleet_joining: Fleet) -> None:
    port = str(free_ports(1)[0])
    given = ("node", "add", "c", "--host", "127.0.0.1", "--port", port, "--for-clone", "--yes")
    before = fleet_joining.file.read_text()
    assert fleet_joining.here_as_written(*given).returncode == 0
    done = fleet_joining.here_as_written(*REMOVE, "--lost", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_joining.file.read_text() == before


def test_another_operator_is_named(joined: Fleet) -> None:
    topology = loader.load(joined.file)
    with lock.held(topology, [list(topology.nodes)[-1]], command="init"):
        assert "node c is being changed by shardctl init by" in refused(joined, *REMOVE)


def test_without_a_terminal_yes_is_required(joined: Fleet) -> None:
    before = joined.file.read_bytes()
    assert joined.here_as_written(*REMOVE).returncode == 2
    assert joined.file.read_bytes() == before
