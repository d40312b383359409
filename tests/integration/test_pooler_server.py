"""A PgBouncer of this machine, and what gets in its way."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.sandbox.poolers import Server
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
    from pathlib import Path

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


def names(server: Server) -> set[str]:
    return {path.name for path in server.pooler.config.parent.iterdir()}


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
        assert server.running() is None
    server.own.write_text("")
    server.pooler.databases_file.write_text("[databases]\nnonsense\n")
    with raises_code("pooler_did_not_start", match=r"größe\.ini"):
        server.start()
    server.pooler.databases_file.write_text("")
    assert server.start() == "started"


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


def test_a_folder_that_cannot_be_made_is_told(server: Server) -> None:
    way = server.pooler.config.parent.parent
    way.write_text("in the way")
    with pytest.raises(ShardctlError) as refused:
        server.start()
    assert refused.value.code in {"directory_refused", "directory_unreachable"}
    assert way.read_text() == "in the way"
