"""`sandbox up`, `down` and `status` with real servers, and everything that gets in their way."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries, connection, directory, embedded, pidfile
from shardctl.sandbox import removal, servers
from shardctl.topology import loader
from tests.fixtures.commands import here
from tests.fixtures.processes import ended
from tests.fixtures.servers import templates
from tests.fixtures.servers.postgres import (
    free_ports,
    free_run,
    local_node,
    local_topology,
    wait_for,
)

if TYPE_CHECKING:
    from shardctl.topology.model import Node, Topology

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as others")


@pytest.fixture
def fleet(server_directory: Path) -> Topology:
    """Two nodes that own shards, and a spare one."""
    one, two, three = free_ports(3)
    return local_topology(
        server_directory,
        local_node(server_directory, "a", one, range(4)),
        local_node(server_directory, "b", two, range(4, 8)),
        local_node(server_directory, "c", three, range(0)),
    )


@pytest.fixture
def single(server_directory: Path) -> Topology:
    """One node."""
    [port] = free_ports(1)
    return local_topology(server_directory, local_node(server_directory, "a", port, range(1)))


@pytest.fixture(scope="module")
def sandbox(session_directory: Path) -> Path:
    """Make a sandbox of one node, which is down: initdb takes most of what a test would."""
    place = session_directory / "sandbox"
    made = local_topology(place, local_node(place, "a", free_ports(1)[0], range(1)))
    up(made)
    down(made)
    return place / ".sandbox"


@pytest.fixture
def prepared(single: Topology, sandbox: Path) -> Topology:
    """One node whose data is made, as if it had been up before."""
    templates.copy(sandbox, single.path.parent / sandbox.name)
    return single


@pytest.fixture
def prepared_fleet(fleet: Topology, sandbox: Path) -> Topology:
    """Three nodes whose data is made."""
    templates.copy(sandbox, fleet.path.parent / sandbox.name)
    for name in "bc":
        templates.copy(data_of(fleet), data_of(fleet, name))
    return fleet


def changed(topology: Topology, name: str, **changes: object) -> Topology:
    nodes = {
        node.name: replace(node, **changes) if node.name == name else node  # type: ignore[arg-type]  # the tests know the fields
        for node in topology.nodes.values()
    }
    return replace(topology, nodes=nodes)


def without(topology: Topology, name: str) -> Topology:
    nodes = {node.name: node for node in topology.nodes.values() if node.name != name}
    return replace(topology, nodes=nodes)


def node_of(topology: Topology, name: str) -> Node:
    return next(node for node in topology.nodes.values() if node.name == name)


def data_of(topology: Topology, name: str = "a") -> Path:
    found = node_of(topology, name).data_directory
    assert found is not None
    return found


def up(topology: Topology) -> dict[str, str]:
    return {one.node.name: one.did for one in servers.up(topology, Silent())}


def states(topology: Topology) -> dict[str, str]:
    return {one.node.name: one.state for one in servers.status(topology)}


def down(topology: Topology, *, delete: bool = False) -> list[servers.Down]:
    return servers.down(topology, Silent(), delete=delete)


def refused(topology: Topology) -> list[ShardctlError]:
    """Bring the sandbox up, and give the errors that it must end with."""
    with pytest.raises(Problems) as problems:
        servers.up(topology, Silent())
    assert all(error.hint for error in problems.value.errors)
    return problems.value.errors


def ask(topology: Topology, name: str, query: str) -> object:
    with connection.connect(
        node_of(topology, name), topology.database, purpose="test", dbname="postgres"
    ) as session:
        row = session.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_no_other_user_of_the_machine_is_the_superuser(
    single: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is could run programs as the sandbox's user."""
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    single.path.write_text(
        "cluster: c\nshards: {count: 1}\n"
        "database: {name: app, app_roles: [app], replication_user: 're\"plica'}\n"
        "nodes: {a: {host: 127.0.0.1, shards: 0, data_directory: .sandbox/a,"
        f" port: {node_of(single, 'a').port}}}}}\n"
    )
    done = here("--topology", str(single.path), "sandbox", "up")
    assert done.returncode == 0, done.stderr
    topology = loader.load(single.path)
    assert ask(topology, "a", "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is True
    assert ask(topology, "a", "SELECT 1 FROM pg_authid WHERE rolname = 're\"plica' AND"
                              " rolpassword LIKE 'SCRAM-SHA-256$%'") == 1  # fmt: skip
    where: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": node_of(single, "a").port,
        "dbname": "postgres",
    }
    for login in ({"user": "postgres"}, {"user": 're"plica'}, {"user": "x", "replication": "true"}):
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(**where | login)
    passfile = Path(topology.database.options["passfile"])
    found = passfile.stat()
    assert (stat.S_IMODE(found.st_mode), passfile.owner()) == (0o600, data_of(single).owner())
    assert [one.did for one in servers.up(servers.protected(topology), Silent())] == ["up"]
    down(topology, delete=True)
    assert not passfile.parent.exists()


def test_the_sandbox_comes_up_once_and_goes_down_and_leaves_nothing(fleet: Topology) -> None:
    fleet = replace(fleet, database=replace(fleet.database, replication_user='re"plica'))
    assert states(fleet) == {"a": "absent", "b": "absent", "c": "absent"}
    assert up(fleet) == {"a": "started", "b": "started"}
    assert up(fleet) == {"a": "up", "b": "up"}
    assert states(fleet) == {"a": "up", "b": "up", "c": "absent"}
    role = "SELECT rolreplication FROM pg_roles WHERE rolcanlogin AND rolname = 're\"plica'"
    assert ask(fleet, "a", role) is True
    assert ask(fleet, "b", "SELECT current_setting('cluster_name')") == "b"
    assert ask(fleet, "b", "SELECT current_setting('server_encoding')") == "UTF8"
    made = (
        "SELECT count(pg_create_logical_replication_slot('made_' || n, 'pgoutput'))"
        " FROM generate_series(1, 24) AS n"
    )
    assert ask(fleet, "a", made) == 24  # for many moves that can be reversed
    pids = [state.pid for state in servers.status(fleet) if state.pid is not None]
    assert all(os.getsid(pid) != os.getsid(0) for pid in pids)
    assert [one.was_up for one in down(fleet)] == [True, True, False]
    assert states(fleet) == {"a": "down", "b": "down", "c": "absent"}
    deleted = [path for one in down(fleet, delete=True) for path in one.deleted]
    assert data_of(fleet, "b") in deleted
    assert not (fleet.path.parent / ".sandbox").exists()


def test_a_node_without_shards_that_has_data_is_started_and_stopped(
    prepared_fleet: Topology,
) -> None:
    assert [node.name for node, _ in servers.foresee(prepared_fleet)] == ["a", "b", "c"]
    assert up(prepared_fleet) == dict.fromkeys("abc", "started")
    assert [one.was_up for one in down(prepared_fleet)] == [True, True, True]


def test_changed_settings_are_reloaded_and_those_for_a_start_and_the_port_come_with_it(
    prepared: Topology,
) -> None:
    up(prepared)
    prepared = changed(
        prepared, "a", settings={"work_mem": "7MB", "max_connections": "50", "my.x": r"it's \ so"}
    )
    [one] = servers.up(prepared, Silent())
    assert one.did == "reloaded"
    assert "max_connections" in one.waiting
    assert ask(prepared, "a", "SELECT current_setting('my.x')") == r"it's \ so"
    before, [port] = node_of(prepared, "a").port, free_ports(1)
    prepared = changed(prepared, "a", port=port)
    [error] = refused(prepared)
    assert f"runs on port {before}" in str(error)
    assert [one.was_up for one in down(prepared)] == [True]
    assert up(prepared) == {"a": "started"}
    assert ask(prepared, "a", "SELECT current_setting('max_connections')") == "50"
    assert ask(prepared, "a", "SELECT current_setting('work_mem')") == "7MB"


def test_a_port_in_use_names_the_program_and_the_other_server_stays_up(
    prepared_fleet: Topology,
) -> None:
    fleet = without(prepared_fleet, "c")
    taken = node_of(fleet, "b").port
    with socket.create_server(("127.0.0.1", taken)):
        failed, rest = refused(fleet)
    assert failed.code == "port_in_use"
    assert f"node b: port {taken} of 127.0.0.1 is in use by" in str(failed)
    assert f"(pid {os.getpid()})" in str(failed)
    assert (str(rest), rest.exit_code) == ("a started; b did not", 3)
    assert up(fleet) == {"a": "up", "b": "started"}


def foreseen(topology: Topology) -> list[str]:
    """Give what a dry run refuses, which has to be what the run refuses."""
    with pytest.raises(Problems) as problems:
        servers.foresee(topology)
    told = [str(error) for error in problems.value.errors]
    assert told == [str(error) for error in refused(topology)]
    return told


def test_a_dry_run_refuses_what_up_would(single: Topology) -> None:
    assert "loopback" in foreseen(changed(single, "a", host="10.0.0.1"))[0]
    data = data_of(single)
    data.mkdir(parents=True)
    (data / "photos.tar").touch()
    assert "photos.tar" in foreseen(single)[0]
    (data / "photos.tar").unlink()
    with socket.create_server(("127.0.0.1", node_of(single, "a").port)):
        assert "is in use by" in foreseen(single)[0]
        with pytest.raises(Problems) as problems:
            servers.up(single, Silent())
        assert problems.value.exit_code == 1  # no server came up


def test_a_directory_with_something_else_in_it_is_refused(single: Topology) -> None:
    data = data_of(single)
    data.mkdir(parents=True)
    (data / "photos.tar").touch()
    [error] = refused(single)
    assert error.code == "directory_not_empty"
    assert "photos.tar" in str(error)
    [one] = down(single, delete=True)
    assert one.left is not None
    assert (data / "photos.tar").exists()


def test_an_empty_directory_is_used_and_what_a_killed_initdb_left_is_removed(
    single: Topology,
) -> None:
    data_of(single).mkdir(parents=True)
    left = directory.being_made(data_of(single))
    (left / "pg_wal").mkdir(parents=True)
    (left / "PG_VERSION").write_text("15\n")
    assert up(single) == {"a": "started"}
    assert not left.exists()


def test_a_directory_called_new_that_initdb_did_not_make_is_not_removed(single: Topology) -> None:
    theirs = directory.being_made(data_of(single))
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").touch()
    [error] = refused(single)
    assert "thesis.tex" in str(error)
    assert (theirs / "thesis.tex").exists()


def test_a_pid_file_of_a_dead_process_is_stale(prepared: Topology) -> None:
    up(prepared)
    pid = pidfile.read(data_of(prepared))
    assert pid is not None
    for one in pidfile.orphans(data_of(prepared)):
        os.kill(one, signal.SIGKILL)
    wait_for(lambda: not pidfile.orphans(data_of(prepared)))
    assert (data_of(prepared) / pidfile.NAME).exists()
    assert states(prepared) == {"a": "down"}
    assert up(prepared) == {"a": "started"}
    # So is one with the number of another process.
    file = data_of(prepared) / pidfile.NAME
    text = file.read_text()
    down(prepared)
    file.write_text(text.replace(text.split()[0], str(os.getpid()), 1))
    assert states(prepared) == {"a": "down"}
    assert [one.was_up for one in down(prepared)] == [False]
    assert up(prepared) == {"a": "started"}


def test_a_server_that_does_not_come_up_shows_its_last_words(prepared: Topology) -> None:
    up(prepared)
    down(prepared)
    [error] = refused(changed(prepared, "a", settings={"no_such_parameter": "1"}))
    lines = str(error).splitlines()
    assert lines[0].startswith("node a: the server did not start")
    assert 'unrecognized configuration parameter "no_such_parameter"' in lines[1]
    assert "shut down" not in str(error), "words of an earlier run"
    assert up(prepared) == {"a": "started"}


def test_a_parameter_that_the_topology_has_elsewhere_is_refused(single: Topology) -> None:
    [error] = refused(changed(single, "a", settings={"Port": "1"}))
    assert "settings: Port: nodes.NAME.port sets it" in str(error)


def test_data_of_another_major_version_is_refused(prepared: Topology) -> None:
    version = data_of(prepared) / "PG_VERSION"
    made = version.read_text().strip()
    version.write_text("9999\n")
    [error] = refused(prepared)
    assert f"was created by PostgreSQL 9999; {binaries.find(None, account=None).directory}" in str(
        error
    )
    version.write_text(f"{made}\n")
    assert states(prepared) == {"a": "down"}


@needs_root
def test_a_place_that_the_servers_user_may_not_enter_is_refused(single: Topology) -> None:
    closed = single.path.parent / "closed"
    closed.mkdir(mode=0o700)
    [error] = refused(changed(single, "a", data_directory=closed / ".sandbox" / "a"))
    assert error.code == "directory_unreachable"
    assert f"cannot enter {closed}" in str(error)
    assert f"chmod o+x {closed}" in error.hint
    assert list(closed.iterdir()) == []


@needs_root
def test_data_of_another_user_is_refused(prepared: Topology) -> None:
    [error] = refused(changed(prepared, "a", os_user="daemon"))
    assert error.code == "directory_owned"
    [error] = refused(changed(prepared, "a", os_user="root"))
    assert "PostgreSQL does not run as root" in str(error)


def test_nothing_is_begun_for_a_node_that_is_not_local(fleet: Topology) -> None:
    wrong = changed(changed(fleet, "b", host="10.1.2.3"), "a", data_directory=None)
    errors = refused(wrong)
    assert [str(error).partition(",")[0] for error in errors] == [
        "node a has no data_directory",
        "node b: host 10.1.2.3 is not a loopback address",
    ]
    assert not (fleet.path.parent / ".sandbox").exists()


def test_data_without_the_marker_is_not_deleted(prepared_fleet: Topology) -> None:
    directory.log(data_of(prepared_fleet, "b")).touch()
    (data_of(prepared_fleet, "b") / removal.MARKER).unlink()
    a, b, _ = down(prepared_fleet, delete=True)
    assert (a.left, b.deleted) == (None, ())
    assert b.left is not None
    assert removal.MARKER in b.left[1]
    assert not data_of(prepared_fleet, "a").exists()
    assert (data_of(prepared_fleet, "b") / "PG_VERSION").exists()
    assert directory.log(data_of(prepared_fleet, "b")).exists()


@pytest.mark.long
@pytest.mark.parametrize("moment", [".new/PG_VERSION", "/PG_VERSION", "/postmaster.pid"])
def test_up_goes_on_after_it_was_killed(single: Topology, moment: str) -> None:
    node, base = node_of(single, "a"), single.path.parent
    program = (
        "import sys; from pathlib import Path; from shardctl.fanout import Silent\n"
        "from shardctl.sandbox import servers\n"
        "from tests.fixtures.servers.postgres import local_node, local_topology\n"
        "base = Path(sys.argv[1])\n"
        "node = local_node(base, 'a', int(sys.argv[2]), range(1))\n"
        "servers.up(local_topology(base, node), Silent())\n"
    )
    with ended(
        subprocess.Popen([sys.executable, "-c", program, str(base), str(node.port)])
    ) as process:
        mark = f"{data_of(single)}{moment}"
        wait_for(lambda: os.path.lexists(mark) or process.poll() is not None)
        process.kill()
    assert up(single)["a"] in ("started", "up")
    assert ask(single, "a", "SELECT 1") == 1
    assert not directory.being_made(data_of(single)).exists()


@pytest.mark.embedded
@pytest.mark.parametrize("major", [16, 18])
def test_the_embedded_servers_come_up(single: Topology, major: int) -> None:
    account = accounts.server_account(None)
    [path] = [
        path for path in embedded.directories() if binaries.find(path, account=None).major == major
    ]
    single = changed(single, "a", bin_directory=path)
    assert up(single) == {"a": "started"}
    version = ask(single, "a", "SELECT current_setting('server_version_num')::int / 10000")
    assert version == major
    found = binaries.find(path, account=account)
    said = Local().run([found.program("pg_basebackup"), "--version"], user=account)
    assert f"(PostgreSQL) {major}" in said.stdout


def shardctl(topology: Path, *words: str, code: int = 0) -> str:
    done = here("--topology", str(topology), "sandbox", *words)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_the_command_line_makes_a_sandbox_and_removes_it_again(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = server_directory / "topology.yaml"
    ports = free_run(3)
    shardctl(file, "new", "--shards", "8", "--nodes", "2", "--port", str(ports[0]))
    shardctl(file, "new", "--shards", "8", "--nodes", "2", code=1)
    assert '"plan":"make"' in shardctl(file, "up", "--dry-run", "-o", "json")
    assert not (server_directory / ".sandbox").exists()
    shardctl(file, "up")
    answer = json.loads(shardctl(file, "status", "-o", "json"))
    assert [(node["name"], node["state"]) for node in answer["nodes"]] == [("a", "up"), ("b", "up")]
    shardctl(file, "down", "--delete", code=2)
    again = json.loads(shardctl(file, "up", "-o", "json"))
    assert [node["did"] for node in again["nodes"]] == ["up", "up"]
    shardctl(file, "down", "--delete", "--yes")
    assert [path.name for path in server_directory.iterdir()] == ["topology.yaml"]
