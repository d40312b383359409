"""What lies where `sandbox up` would put a pooler's files, and is not the sandbox's."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.hosts.files import FileRefused
from shardctl.pgbouncer import render
from shardctl.sandbox import poolers, servers
from shardctl.sandbox.poolers import Server, program
from shardctl.topology import loader
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.topology.model import Topology

FOREIGN = '"app" "secret"\n'


@pytest.fixture
def topology(server_directory: Path) -> Iterator[Topology]:
    """A pooler whose directory is there and belongs to the user who runs poolers."""
    (port,) = free_ports(1)
    path = server_directory / "topology.yaml"
    path.write_text(
        "cluster: c\nshards: {count: 1}\ndatabase: {name: app, app_roles: [app]}\n"
        "nodes:\n  a: {host: 127.0.0.1, port: 1, shards: 0}\n"
        f"poolers:\n  p1: {{host: 127.0.0.1, port: {port}, config: p1/pgbouncer.ini}}\n"
    )
    folder = server_directory / "p1"
    folder.mkdir()
    account = accounts.server_account(None)
    if account is not None:
        shutil.chown(folder, account)
    made = loader.load(path)
    yield made
    poolers.down(made, Silent(), delete=False)
    stop_all_below(server_directory)


@pytest.fixture
def server(topology: Topology) -> Server:
    (pooler,) = topology.poolers.values()
    return Server.of(topology, pooler, program() or "pgbouncer")


def delete(topology: Topology) -> servers.Down:
    (one,) = poolers.down(topology, Silent(), delete=True)
    return one


def test_the_console_is_not_every_users(topology: Topology, server: Server) -> None:
    account = accounts.server_account(None)
    given = servers.protected(with_data(topology))
    server = Server.of(given, server.pooler, server.program)
    server.start()
    passfile = given.database.options["passfile"]
    assert "password" not in repr(server)
    assert server.users.stat().st_mode & 0o777 == 0o600
    assert account is None or server.users.owner() == account
    where: dict[str, Any] = {"host": "127.0.0.1", "port": server.pooler.port, "dbname": "pgbouncer"}
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(**where, user=server.pooler.admin_user, passfile=os.devnull)
    with pytest.raises(psycopg.OperationalError, match="allowed"):
        psycopg.connect(**where, user="app", passfile=passfile)
    assert server.start() == "up"
    assert delete(topology).left is None
    assert not server.users.parent.exists()


def with_data(topology: Topology) -> Topology:
    """Give the node a data directory, beside which the passfile is."""
    (node,) = topology.nodes.values()
    data = topology.path.parent / "data" / "a"
    return dataclasses.replace(
        topology, nodes={node.name: dataclasses.replace(node, data_directory=data)}
    )


def test_a_foreign_file_of_users_is_neither_overwritten_nor_removed(
    topology: Topology, server: Server
) -> None:
    server.users.write_text(FOREIGN)
    for action in (server.foresee, server.start):
        with raises_code("config_not_ours"):
            action()
    assert {path.name for path in server.users.parent.iterdir()} == {"users.txt"}
    assert poolers.down(topology, Silent(), delete=True) == []
    assert server.users.read_text() == FOREIGN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_files_are_written_as_the_user_who_runs_the_pooler(server: Server) -> None:
    """A link that is put there between the look and the writing gives that user nothing."""
    server.start()
    account = accounts.server_account(None)
    written = (server.users, server.pooler.config, server.pooler.databases_file, server.own)
    assert {path.owner() for path in written} == {account}
    victim = server.users.parent.parent / "roots"
    victim.write_text(f"root's, but {render.SANDBOX}")
    victim.parent.chmod(0o755)
    server.users.unlink()
    server.users.symlink_to(victim)
    with pytest.raises(FileRefused, match="denied"):
        server.start()
    assert "root's" in victim.read_text()
