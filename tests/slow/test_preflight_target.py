"""Targets onto which preflight lets nothing be cloned: each cause is made."""

from __future__ import annotations

import os
import socketserver
import threading
from typing import TYPE_CHECKING

from shardctl.hosts.local import Local
from shardctl.moves.preflight import directory as directories
from tests.fixtures.moves.harm import small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.moves.preflight.directory import Directory
    from tests.fixtures.moves.preflight import Movable


def place(preflight_fleet: Movable) -> Path:
    assert preflight_fleet.target.data_directory is not None
    return preflight_fleet.target.data_directory


def programs(directory: Path, **said: str) -> Path:
    """Make programs that say something and end with code 0."""
    directory.mkdir()
    directory.chmod(0o755)
    for name, text in said.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return directory


def test_no_data_directory(preflight_fleet: Movable) -> None:
    preflight_fleet.change(data_directory=None)
    preflight_fleet.only_target("no_data_directory")


def test_what_is_seen_of_a_small_disk_and_where_it_is_mounted(
    preflight_fleet: Movable, server_directory: Path
) -> None:
    small = server_directory / "small"
    small.mkdir()
    with small_disk(small, "8m"):
        preflight_fleet.change(data_directory=small / "below" / "data")
        assert str(small) in preflight_fleet.only_target("disk")
        assert look_at_place(preflight_fleet, small).kind == "mount"


def look_at_place(preflight_fleet: Movable, path: Path) -> Directory:
    return directories.look_at(Local(), path, account=preflight_fleet.server().account)


def test_a_port_that_something_else_has(preflight_fleet: Movable) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _HangsUp) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            preflight_fleet.change(port=other.server_address[1])
            told = preflight_fleet.only_target("port_taken")
        finally:
            other.shutdown()
    port = preflight_fleet.target.port
    assert f"pid {os.getpid()}" in told
    assert f"127.0.0.1:{port}" in told


class _HangsUp(socketserver.BaseRequestHandler):
    """Speaks no language that PostgreSQL's clients know."""

    def handle(self) -> None:
        self.request.sendall(b"220 ready\r\n")
