"""Targets onto which preflight lets nothing be cloned: each cause is made."""

from __future__ import annotations

import socketserver
import threading
from typing import TYPE_CHECKING

from tests.fixtures.moves.harm import small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable


def test_what_is_seen_of_no_place_a_small_disk_and_where_it_is_mounted(
    preflight_fleet: Movable, server_directory: Path
) -> None:
    small = server_directory / "small"
    small.mkdir()
    preflight_fleet.change(data_directory=None)
    preflight_fleet.only("no_data_directory", "target")
    with small_disk(small, "8m"):
        preflight_fleet.change(data_directory=small / "below" / "data")
        assert str(small) in preflight_fleet.only("disk", "target")
        preflight_fleet.change(data_directory=small)
        assert "mount point" in preflight_fleet.refused(part="target")["directory_unfit"]


def test_a_port_that_something_else_has(preflight_fleet: Movable) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _HangsUp) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            preflight_fleet.change(port=other.server_address[1])
            told = preflight_fleet.only("trial_failed")
        finally:
            other.shutdown()
    assert "Address already in use" in told
    assert f'"127.0.0.1", port {preflight_fleet.target.port}' in told or "127.0.0.1" in told


class _HangsUp(socketserver.BaseRequestHandler):
    """Speaks no language that PostgreSQL's clients know."""

    def handle(self) -> None:
        self.request.sendall(b"220 ready\r\n")
