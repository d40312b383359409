"""`node add`: a server is checked, gets its line, and is a member; whatever is wrong is refused."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.errors import Problems
from shardctl.fanout import Silent
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.nodes import addition, line
from shardctl.state import lock
from shardctl.topology import loader
from tests.fixtures.fleets.joining import add
from tests.fixtures.fleets.pooled import offered
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.servers.postgres import PgServer, StartServer

OWNERS = {**dict.fromkeys(range(4), "a"), **dict.fromkeys(range(4, 8), "b")}


@pytest.fixture(scope="session")
def plain_server(pg_server: StartServer) -> PgServer:
    """Start a server as it comes, with wal_level = replica."""
    return pg_server({"max_logical_replication_workers": "0"})


def refused(fleet: Fleet, *arguments: str, code: int = 1) -> str:
    """See that a command is refused and nothing is changed, and give what it shows."""
    before = fleet.file.read_bytes()
    done = fleet.here_as_written(*arguments, "--yes", "-o", "json")
    assert done.returncode == code, done.stderr
    assert fleet.file.read_bytes() == before
    told = json.loads(done.stdout)
    if code == 1:
        assert told["state"] == "refused"
    assert told["errors"][0]["hint"]
    return done.stderr


def has_database(fleet: Fleet, node: str) -> bool:
    with fleet.servers[node].connect() as session:
        query = "SELECT count(*) FROM pg_database WHERE datname = %s"
        return session.execute(query, (fleet.database,)).fetchone() == (1,)


def test_a_server_becomes_a_member_and_a_second_run_changes_nothing(fleet_joining: Fleet) -> None:
    before = fleet_joining.file.read_text()
    planned = fleet_joining.here_as_written(*add(fleet_joining), "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert fleet_joining.file.read_text() == before
    assert not has_database(fleet_joining, "c")
    done = fleet_joining.here_as_written(*add(fleet_joining), "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    told, dry = json.loads(done.stdout), json.loads(planned.stdout)
    assert (told["state"], dry["state"]) == ("done", "planned")
    assert told["changes"] == dry["changes"]
    changes = [(c["action"], c["kind"]) for c in told["changes"] if c["kind"] != "role"]
    assert changes[:2] == [("write", "topology"), ("create", "database")]
    port = fleet_joining.servers["c"].port
    new = f"  c: {{host: 127.0.0.1, port: {port}, shards: none}}\n"
    assert fleet_joining.file.read_text() == before + new
    assert dict(fleet_joining.query("c", "SELECT shard, node FROM shardctl.map")) == OWNERS
    assert fleet_joining.query("c", "SELECT node, map_version FROM shardctl.cluster") == [("c", 1)]
    for node in "ab":
        events = fleet_joining.query(
            node, "SELECT result FROM shardctl.event WHERE command = 'node add'"
        )
        assert events == [("node c: begun",)]
    again = fleet_joining.here_as_written(*add(fleet_joining), "--yes")
    assert again.returncode == 0, again.stderr
    assert again.stdout == "nothing to do: node c is in the topology and a member of the fleet\n"
    init = fleet_joining.here_as_written("init")
    assert "nothing to do" in init.stdout


def test_poolers_offer_the_new_node(fleet_joining_pooled: PooledFleet) -> None:
    fleet = fleet_joining_pooled
    done = fleet.here_as_written(*add(fleet), "--yes")
    assert done.returncode == 0, done.stderr
    assert offered(fleet.pg_bouncer)[f"{fleet.database}_c"] == fleet.servers["c"].port
    assert "next: `shardctl move-shards SHARDS --to c`" in done.stderr


def test_all_keys_of_a_node_are_written(fleet_joining: Fleet) -> None:
    keys = ("--data-directory", "nodes/c", "--os-user", "o p", "--set", "settings.work_mem=64MB")
    done = fleet_joining.here_as_written(*add(fleet_joining, *keys), "--yes")
    assert done.returncode == 0, done.stderr
    node = loader.load(fleet_joining.file).nodes["c"]  # type: ignore[index]  # a name
    assert node.data_directory == fleet_joining.directory / "nodes/c"
    assert (node.os_user, dict(node.settings)) == ("o p", {"work_mem": "64MB"})
    line = fleet_joining.file.read_text().splitlines()[-1]
    assert line.endswith(", os_user: o p, settings: {work_mem: 64MB}}")


def test_a_node_that_does_not_run_is_added_for_a_clone(fleet_joining: Fleet) -> None:
    port = str(free_ports(1)[0])
    given = ("node", "add", "c", "--host", "127.0.0.1", "--port", port)
    said = refused(fleet_joining, *given)
    assert "Connection refused" in said
    assert "--for-clone" in said
    done = fleet_joining.here_as_written(*given, "--for-clone", "--yes")
    assert done.returncode == 0, done.stderr
    assert loader.load(fleet_joining.file).nodes["c"].shards == ()  # type: ignore[index]  # a name
    assert "waits for a clone" in done.stderr
    said = refused(fleet_joining, *add(fleet_joining, "--for-clone", name="d"))
    assert "a program listens at 127.0.0.1:" in said


def test_a_name_that_is_none_is_refused(fleet_joining: Fleet) -> None:
    for name in ("c d", "ü", "", "x" * 41, "c;d"):
        said = refused(fleet_joining, *add(fleet_joining, name=name), code=2)
        assert "nodes." in said, name
        assert "nothing was changed" in said


def test_bad_options_are_refused(fleet_joining: Fleet) -> None:
    assert "99999 is not a port" in refused(
        fleet_joining, "node", "add", "c", "--host", "h", "--port", "99999", code=2
    )
    assert "--set 'work_mem' is not a key" in refused(
        fleet_joining, *add(fleet_joining, "--set", "work_mem=1MB"), code=2
    )
    assert "nodes.c.ssh.usr" in refused(
        fleet_joining, *add(fleet_joining, "--set", "ssh.usr=x"), code=2
    )
    assert "nodes.c.host" in refused(
        fleet_joining, "node", "add", "c", "--host", "-x", "--port", "1", code=2
    )


def test_a_node_that_exists_is_refused(fleet_joining: Fleet) -> None:
    same = ("--host", "127.0.0.1", "--port", str(fleet_joining.servers["a"].port))
    assert "has a node a already, with shards" in refused(
        fleet_joining, "node", "add", "a", *same, code=2
    )
    assert "node a" in refused(fleet_joining, "node", "add", "c", *same, code=2)
    other = ("--host", "127.1", *same[2:])  # another name of the same address
    assert "the server is node a of cluster test" in refused(
        fleet_joining, "node", "add", "c", *other
    )
    assert fleet_joining.here_as_written(*add(fleet_joining), "--yes").returncode == 0
    said = refused(fleet_joining, *add(fleet_joining, "--os-user", "x"), code=2)
    assert "has a node c already, with another os_user" in said


def test_a_server_of_another_cluster_is_refused(fleet_joining: Fleet) -> None:
    assert fleet_joining.here_as_written(*add(fleet_joining), "--yes").returncode == 0
    fleet_joining.write()  # without node c
    fleet_joining.execute("c", "UPDATE shardctl.cluster SET cluster = 'other'")
    fleet_joining.servers = {n: s for n, s in fleet_joining.servers.items() if n in ("a", "b", "c")}
    assert "the server is node c of cluster other" in refused(fleet_joining, *add(fleet_joining))


def test_a_server_without_the_settings_of_moves_is_refused_unless_that_is_accepted(
    fleet_joining: Fleet, plain_server: PgServer
) -> None:
    fleet_joining.servers = {**fleet_joining.servers, "c": plain_server}
    said = refused(fleet_joining, *add(fleet_joining))
    assert "node c: wal_level = replica" in said
    assert "max_logical_replication_workers = 0" in said
    done = fleet_joining.here_as_written(*add(fleet_joining, "--accept-unfit"), "--yes")
    assert done.returncode == 0, done.stderr
    assert "note: accepted: node c: wal_level = replica" in done.stderr
    assert dict(fleet_joining.query("c", "SELECT shard, node FROM shardctl.map")) == OWNERS


def test_a_database_with_shards_or_rows_is_refused(fleet_joining: Fleet) -> None:
    with fleet_joining.servers["c"].connect() as session:
        session.execute(
            sql.SQL("CREATE DATABASE {}").format(sql.Identifier(fleet_joining.database))
        )
    fleet_joining.execute("c", "CREATE TABLE public.left_over AS SELECT 1 AS x")
    assert "tables with rows: public.left_over" in refused(fleet_joining, *add(fleet_joining))
    fleet_joining.execute("c", "CREATE SCHEMA shard3; CREATE SCHEMA x__retired_0123abcd")
    for more in ((), ("--accept-unfit",)):
        said = refused(fleet_joining, *add(fleet_joining, *more))
        assert "names of shards or of retired copies: shard3, x__retired_0123abcd" in said


def test_a_database_of_another_encoding_is_refused(fleet_joining: Fleet) -> None:
    with fleet_joining.servers["c"].connect() as session:
        session.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").format(
                sql.Identifier(fleet_joining.database)
            )
        )
    assert "node c: its database has the encoding LATIN1" in refused(
        fleet_joining, *add(fleet_joining)
    )


def test_without_a_terminal_yes_is_required(fleet_joining: Fleet) -> None:
    before = fleet_joining.file.read_bytes()
    done = fleet_joining.here_as_written(*add(fleet_joining))
    assert done.returncode == 2
    assert "add --yes" in done.stderr
    assert fleet_joining.file.read_bytes() == before
    assert not has_database(fleet_joining, "c")


def test_another_operator_is_named(fleet_joining: Fleet) -> None:
    topology = loader.load(fleet_joining.file)
    with lock.held(topology, [next(iter(topology.nodes))], command="move-shards"):
        said = refused(fleet_joining, *add(fleet_joining))
    assert "node a is being changed by shardctl move-shards by" in said
    assert not has_database(fleet_joining, "c")


def test_a_file_that_changed_meanwhile_stays_as_it_is(fleet_joining: Fleet) -> None:
    topology = loader.load(fleet_joining.file)
    values = line.values({"host": "127.0.0.1", "port": str(fleet_joining.servers["c"].port)})
    plan = addition.plan(topology, "c", values)
    text = fleet_joining.file.read_text()
    fleet_joining.file.write_text("# a comment is no change\n" + text)
    with fleet_joining.file.open("a") as file:
        file.write("  d: {host: 127.0.0.1, port: 1, shards: none}\n")
    edited = fleet_joining.file.read_text()
    with pytest.raises(Problems) as done:
        addition.carry_out(plan, Silent(), print)
    assert "the file changed after this command read it" in done.value.errors[0].message
    assert fleet_joining.file.read_text() == edited
    again = fleet_joining.here_as_written(*add(fleet_joining), "--yes")
    assert again.returncode == 0, again.stderr
    assert fleet_joining.file.read_text().startswith("# a comment is no change\n")


@pytest.fixture
def mount_point(fleet_joining: Fleet) -> Iterator[Path]:
    """Make the topology file one that cannot be replaced."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    file = str(fleet_joining.file)
    try:
        Local().run(["mount", "--bind", file, file])
    except CommandFailed as error:
        pytest.skip(f"nothing may be mounted here: {error}")
    yield fleet_joining.file
    Local().run(["umount", file])


@pytest.mark.usefixtures("mount_point")
def test_a_file_that_cannot_be_written_is_found_before_anything_is_changed(
    fleet_joining: Fleet,
) -> None:
    said = refused(fleet_joining, *add(fleet_joining))
    assert "topology.yaml cannot be changed: it is a mount point" in said
    assert not has_database(fleet_joining, "c")


def test_a_fleet_without_a_map_is_refused(new_fleet: Fleet, third_server: PgServer) -> None:
    new_fleet.write()
    new_fleet.servers = {**new_fleet.servers, "c": third_server}
    for node in "ab":
        with new_fleet.servers[node].connect() as session:
            session.execute(
                sql.SQL("CREATE DATABASE {}").format(sql.Identifier(new_fleet.database))
            )
    assert "no node has the map" in refused(new_fleet, *add(new_fleet))


def test_a_server_that_comes_back_with_an_older_map_gets_the_new_one(fleet_joining: Fleet) -> None:
    assert fleet_joining.here_as_written(*add(fleet_joining), "--yes").returncode == 0
    for node in "ab":
        fleet_joining.execute(node, "UPDATE shardctl.cluster SET map_version = 2")
    fleet_joining.execute("c", "UPDATE shardctl.map SET node = 'x' WHERE shard IN (1, 5)")
    lines = fleet_joining.file.read_text().splitlines(keepends=True)
    fleet_joining.file.write_text("".join(line for line in lines if not line.startswith("  c:")))
    done = fleet_joining.here_as_written(*add(fleet_joining), "--yes")
    assert done.returncode == 0, done.stderr
    assert dict(fleet_joining.query("c", "SELECT shard, node FROM shardctl.map")) == OWNERS
    assert fleet_joining.query("c", "SELECT map_version FROM shardctl.cluster") == [(2,)]


def test_an_unreachable_node_of_the_fleet_is_named(fleet_joining: Fleet) -> None:
    port = fleet_joining.servers["b"].port
    text = fleet_joining.file.read_text()
    fleet_joining.file.write_text(text.replace(f"port: {port},", f"port: {free_ports(1)[0]},"))
    assert "node b (127.0.0.1:" in refused(fleet_joining, *add(fleet_joining))


def test_a_plan_is_refused_for_code(fleet_joining: Fleet) -> None:
    topology = loader.load(fleet_joining.file)
    with raises_code("bad_node_option"):
        line.values({"host": "h", "port": "1"}, ["x"])
    with raises_code("node_exists"):
        addition.plan(topology, "a", line.values({"host": "h", "port": "1"}))
