"""A PgBouncer of this machine from its files to its end, and everything that gets in its way."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.ports import PortInUse
from shardctl.pgbouncer.server import Server
from shardctl.topology.model import PoolerName, Topology
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.pgbouncer import PgBouncer, end
from tests.fixtures.servers.postgres import (
    free_ports,
    local_node,
    local_pooler,
    local_topology,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = PoolerName("p1")


@pytest.fixture
def topology(server_directory: Path) -> Topology:
    """A cluster with one pooler, in a folder that is not there yet, with names that are odd."""
    folder = server_directory / "pool er's; #1" / NAME
    [port] = free_ports(1)
    pooler = local_pooler(folder, NAME, port, databases_file=folder / "größe.ini")
    node = local_node(server_directory, "a", 1, range(4))
    made = local_topology(server_directory, node, options={"connect_timeout": "2"})
    return dataclasses.replace(made, poolers={NAME: pooler})


@pytest.fixture
def server_of(pgbouncer_program: str) -> Iterator[Callable[..., Server]]:
    """Give a function that puts a server together; those that run end with the test."""
    made: list[Server] = []

    def build(topology: Topology, **changes: Any) -> Server:
        pooler = dataclasses.replace(topology.poolers[NAME], **changes)
        made.append(Server.of(topology, pooler, pgbouncer_program))
        return made[-1]

    yield build
    for one in made:
        end(PgBouncer(one.pooler, one))


@pytest.fixture
def server(topology: Topology, server_of: Callable[..., Server]) -> Server:
    return server_of(topology)


def console_of(server: Server) -> PgBouncer:
    return PgBouncer(server.pooler, server)


def names(server: Server) -> set[str]:
    return {path.name for path in server.pooler.config.parent.iterdir()}


def processes(server: Server) -> set[int]:
    """Find every process that runs with its configuration."""
    word = os.fsencode(server.pooler.config)
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word in (process / "cmdline").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:
            continue
    return found


def test_it_is_made_started_stopped_started_again_and_leaves_nothing(server: Server) -> None:
    assert (server.made(), server.running(), server.foresee()) == ("absent", None, "make")
    assert not server.pooler.config.parent.parent.exists()
    assert server.stop() is False
    assert server.start() == "started"
    pid = server.running()
    assert (server.made(), server.foresee(), server.start()) == ("ours", "up", "up")
    assert server.running() == pid
    assert processes(server) == {pid}
    assert names(server) == {
        "pgbouncer.ini", "größe.ini", "pgbouncer.log", "pgbouncer.pid", "users.txt",
        "pgbouncer.own.ini",
    }  # fmt: skip
    with console_of(server).console() as console:
        config = console.config()
    assert config["conffile"] == str(server.pooler.config)
    assert config["pool_mode"] == "transaction"
    assert config["logfile"] == str(server.log)
    assert server.stop() is True
    assert (server.running(), server.foresee(), processes(server)) == (None, "start", set())
    assert server.start() == "started"
    assert server.stop() is True
    removed, kept = server.remove()
    assert kept is None
    assert {path.name for path in removed} == {
        "pgbouncer.ini", "größe.ini", "pgbouncer.log", "users.txt", "pgbouncer.own.ini",
    }  # fmt: skip
    assert not server.pooler.config.parent.exists()
    assert server.made() == "absent"


def test_a_configuration_of_somebody_else_is_refused_and_left(server: Server) -> None:
    config = server.pooler.config
    config.parent.mkdir(parents=True)
    for text in ("", "[pgbouncer]\nlisten_port = 1\n", "; checksum: \n"):
        config.write_text(text)
        assert server.made() == "foreign"
        for action in (server.start, server.foresee):
            with raises_code("config_not_ours") as refused:
                action()
            assert str(config) in refused.value.message
        assert server.remove() == ((), None)
        assert names(server) == {"pgbouncer.ini"}
        assert config.read_text() == text


def test_a_port_in_use_is_told_with_its_holder_and_nothing_is_made(server: Server) -> None:
    with socket.create_server(("127.0.0.1", server.pooler.port)):
        for action in (server.start, server.foresee):
            with pytest.raises(PortInUse) as refused:
                action()
            assert refused.value.port == server.pooler.port
            assert f"pid {os.getpid()}" in refused.value.message
        assert not server.pooler.config.parent.exists()
    server.start()


def test_a_configuration_that_it_does_not_take_is_told_in_its_own_words(server: Server) -> None:
    server.start()
    server.stop()
    for new, said in (
        ("pool_mode = sometimes", "pool_mode"),
        ("nonsense line", "syntax"),
        ("admin_userz = postgres", "admin_userz"),
    ):
        server.own.write_text(f"{new}\n")
        with raises_code("pooler_did_not_start") as refused:
            server.start()
        assert said in refused.value.message
        assert str(server.log) in refused.value.hint
        assert processes(server) == set()
    server.own.write_text("")
    server.pooler.databases_file.write_text("[databases]\nnonsense\n")
    with raises_code("pooler_did_not_start", match=r"größe\.ini"):
        server.start()
    server.pooler.databases_file.write_text("")
    assert server.start() == "started"


def test_what_is_not_ours_is_left_when_it_is_removed(server: Server) -> None:
    mine = "; all mine\n[databases]\nmine = host=127.0.0.1\n"
    folder = server.pooler.config.parent
    folder.mkdir(parents=True)
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(folder, account)
    server.pooler.databases_file.write_text(mine)
    server.start()
    (folder / "notes.txt").write_text("mine")
    server.stop()
    server.remove()
    assert names(server) == {"größe.ini", "notes.txt"}
    assert server.pooler.databases_file.read_text() == mine


def test_a_folder_that_cannot_be_made_is_told(server: Server) -> None:
    way = server.pooler.config.parent.parent
    way.write_text("in the way")
    with pytest.raises(ShardctlError) as refused:
        server.start()
    assert refused.value.code in {"directory_refused", "directory_unreachable"}
    assert str(way) in refused.value.message
    assert way.read_text() == "in the way"


def test_a_stale_pid_file_with_the_number_of_another_process_is_replaced(server: Server) -> None:
    server.start()
    server.stop()
    with ended(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)) as other:
        for number in (str(other.pid), "nonsense", "-1"):
            server.pid_file.write_text(f"{number}\n")
            assert server.running() is None
            assert server.stop() is False
            assert server.start() == "started"
            assert server.running() != other.pid
            assert other.poll() is None
            assert server.stop() is True
            assert other.poll() is None
        other.kill()
