"""Addresses at which somebody listens, nobody does, or nobody answers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from shardctl.hosts import ports

if TYPE_CHECKING:
    from pathlib import Path


def test_a_name_that_nobody_knows_is_silent() -> None:
    assert ports.knock("no-such-host.invalid", 6432) == "silent"


def test_a_socket_in_a_directory_is_knocked_at_too(tmp_path: Path) -> None:
    assert ports.knock(str(tmp_path), 6432) == "silent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / ".s.PGSQL.6432"))
        server.listen()
        assert ports.knock(str(tmp_path), 6432) == "open"
    assert ports.knock(str(tmp_path), 6432) == "closed"
