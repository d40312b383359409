"""`sandbox up`, `down` and `status` with real servers, and everything that gets in their way."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.postgres import connection
from shardctl.postgres.hosted import log_of
from shardctl.sandbox import servers
from shardctl.topology import loader
from tests.fixtures.commands import here
from tests.fixtures.servers import templates
from tests.fixtures.servers.postgres import (
    free_ports,
    free_run,
    local_node,
    local_topology,
)

if TYPE_CHECKING:
    from shardctl.topology.model import Node, Topology

MARKER = "shardctl.sandbox"
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


def node_of(topology: Topology, name: str) -> Node:
    return next(node for node in topology.nodes.values() if node.name == name)


def data_of(topology: Topology, name: str = "a") -> Path:
    found = node_of(topology, name).data_directory
    assert found is not None
    return found


def give(topology: Topology) -> None:
    """Let the user who runs servers own the directory of the sandbox, and all in it."""
    if (account := accounts.server_account(None)) is not None:
        for path in (data_of(topology).parent, *data_of(topology).parent.rglob("*")):
            shutil.chown(path, account)


def up(topology: Topology) -> dict[str, str]:
    return {one.node.name: one.did for one in servers.up(topology, Silent())}


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
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(**where | login)
    passfile = Path(topology.database.options["passfile"])
    found = passfile.stat()
    assert (stat.S_IMODE(found.st_mode), passfile.owner()) == (0o600, data_of(single).owner())
    assert [one.did for one in servers.up(servers.protected(topology), Silent())] == ["up"]
    down(topology, delete=True)
    assert not passfile.parent.exists()


def test_a_directory_with_something_else_in_it_is_refused(single: Topology) -> None:
    data = data_of(single)
    data.mkdir(parents=True)
    (data / "photos.tar").touch()
    give(single)
    [error] = refused(single)
    assert error.code == "directory_not_empty"
    assert "photos.tar" in str(error)
    [one] = down(single, delete=True)
    assert one.left is not None
    assert (data / "photos.tar").exists()


@needs_root
def test_data_of_another_user_is_refused(prepared: Topology) -> None:
    [error] = refused(changed(prepared, "a", os_user="daemon"))
    assert error.code == "directory_owned"
    [error] = refused(changed(prepared, "a", os_user="root"))
    assert error.code == "account_refused"


def test_data_without_the_marker_is_not_deleted(prepared_fleet: Topology) -> None:
    log_of(data_of(prepared_fleet, "b")).touch()
    (data_of(prepared_fleet, "b") / MARKER).unlink()
    a, b, _ = down(prepared_fleet, delete=True)
    assert (a.left, b.deleted) == (None, ())
    assert b.left is not None
    assert MARKER in b.left[1]
    assert not data_of(prepared_fleet, "a").exists()
    assert (data_of(prepared_fleet, "b") / "PG_VERSION").exists()
    assert log_of(data_of(prepared_fleet, "b")).exists()


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


@needs_root
def test_a_place_that_the_servers_user_may_not_enter_is_refused(single: Topology) -> None:
    closed = single.path.parent / "closed"
    closed.mkdir(mode=0o700)
    [error] = refused(changed(single, "a", data_directory=closed / ".sandbox" / "a"))
    assert error.code == "directory_unreachable"
    assert str(closed) in str(error)
    assert list(closed.iterdir()) == []
