"""What killed test sessions leave is swept by the next, and what running ones use is not."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.testing import directory, ports
from tests.fixtures.servers.postgres import serving, wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.applications import Application

WAITING = """
import os, time
def test_waiting(fleet):
    with open("dsn", "w") as told:
        told.write(fleet.dsn("a"))
    os.rename("dsn", "ready")
    while True:
        time.sleep(0.1)
"""


def test_a_killed_session_is_swept_by_the_next_and_a_running_one_is_not(
    application: Application,
) -> None:
    application.write("test_waiting.py", WAITING)
    ready = application.directory / "ready"
    with application.begin("test_waiting.py") as waiting:
        try:
            wait_for(lambda: ready.exists() or waiting.poll() is not None, seconds=60)
            dsn = ready.read_text()
            [used] = application.fleets()
            running = [serving(used / ".sandbox" / node) for node in "ab"]
            assert all(running)
            application.pytest("test_photos.py")
            assert application.fleets() == [used]
            with psycopg.connect(dsn) as session:
                assert session.execute("SELECT count(*) FROM shard0.licences").fetchone() == (2,)
        finally:
            waiting.kill()
    assert application.fleets() == [used]
    assert all(serving(used / ".sandbox" / node) for node in "ab"), "the servers outlived it"
    # What it was made of may be gone by then.
    (application.directory / "test_waiting.py").unlink()
    (application.directory / "migrations").rename(application.directory / "moved")
    application.write("migrations/0001_other.sql", "CREATE TABLE other ()")
    application.write("test_photos.py", "def test_nothing(fleet): pass\n")
    application.pytest("test_photos.py")
    assert application.fleets() == []
    for pid in itertools.chain(*running):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interrupted_session_leaves_nothing(application: Application) -> None:
    # As Ctrl-C raises it: the signal itself is ignored by what is started in the background.
    application.write("test_stopped.py", "def test_stopped(fleet): raise KeyboardInterrupt\n")
    assert "KeyboardInterrupt" in application.pytest("test_stopped.py", code=2)
    assert application.fleets() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has servers of another user")
def test_a_closed_place_for_temporary_files_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with directory.made() as made:
        assert made.parent == Path("/var/tmp")  # noqa: S108  # where it should be
    assert not made.exists()


def test_what_is_not_a_killed_sessions_own_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(directory, "_FAR", tmp_path)
    swept: list[Path] = []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".alive").touch()
    (tmp_path / f"{directory.PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{directory.PREFIX}unlocked").mkdir()
    left = tmp_path / f"{directory.PREFIX}left"
    left.mkdir()
    (left / ".alive").touch()
    if os.geteuid() == 0:
        other = tmp_path / f"{directory.PREFIX}others"
        other.mkdir()
        (other / ".alive").touch()
        os.chown(other, 65534, 65534)
    directory.sweep(swept.append)
    assert swept == [left]
    assert not left.exists()
    assert (elsewhere / ".alive").exists()


def test_a_held_port_lets_a_server_listen_and_is_given_to_nobody() -> None:
    import socket

    from shardctl.hosts.ports import claim_free

    with ports.held("127.0.0.1", 2) as (one, two):
        assert one != two
        claim_free("127.0.0.1", one)
        with socket.socket() as server, contextlib.ExitStack() as stack:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", one))
            server.listen()
            stack.enter_context(socket.create_connection(("127.0.0.1", one)))
            with socket.socket() as second, pytest.raises(OSError, match="in use"):
                second.bind(("127.0.0.1", two))
