"""The plugin for applications' tests, in real pytest processes, some of which are killed."""

from __future__ import annotations

import itertools
import os
import tempfile
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.testing import directory
from tests.fixtures.servers.postgres import serving, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.applications import Application


def test_the_pages_example_passes_and_leaves_nothing(application: Application) -> None:
    assert "6 passed" in application.pytest()
    assert application.fleets() == []


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
