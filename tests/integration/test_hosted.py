"""What a move's server refuses and tells, as on every host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from shardctl.postgres import standby
from shardctl.topology.model import Control
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.servers.clones import Cloning

NONE = Control(start=None, stop=None, reload=None, status=None)


def test_a_data_directory_of_another_version_is_not_started(cloning: Cloning) -> None:
    cloning.make()
    (cloning.data / "PG_VERSION").write_text("9\n")
    with raises_code("wrong_major"):
        standby.start(cloning.clone)
    (cloning.data / "PG_VERSION").unlink()
    with raises_code("wrong_major"):
        standby.start(cloning.clone)


def test_a_server_on_another_port_is_told(cloning: Cloning) -> None:
    cloning.start()
    server = dataclasses.replace(cloning.clone.server, port=free_ports(1)[0])
    with raises_code("server_elsewhere", match=str(cloning.port)):
        server.start()


def test_what_its_own_commands_say_counts_with_what_is_seen(cloning: Cloning) -> None:
    cloning.make()
    server = cloning.clone.server

    def with_status(command: str) -> bool:
        control = dataclasses.replace(NONE, status=command)
        return dataclasses.replace(server, control=control).running()

    assert with_status("exit 0")
    assert not with_status("exit 3")
    assert not with_status("echo no unit >&2; exit 4"), "no server is without a pid file"
    (cloning.data / "postmaster.pid").write_text("1\n")
    with raises_code("control_failed"):
        with_status("echo no unit >&2; exit 4")
    standby.start(cloning.clone)
    assert with_status("exit 3"), "it is there, whatever somebody says"


def test_a_command_that_does_not_stop_it_is_told(cloning: Cloning) -> None:
    cloning.start()
    control = dataclasses.replace(NONE, stop="echo in vain >&2")
    server = dataclasses.replace(cloning.clone.server, control=control)
    with raises_code("server_did_not_stop"):
        server.stop()
    assert cloning.clone.server.running()
