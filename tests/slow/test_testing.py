"""The plugin for applications' tests, in real pytest processes, some of which are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.testing import directory
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import serving, stop_all_below, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "test-your-app.md"
BLOCK = re.compile(r"<!-- tested: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Application:
    """Files of an application; its fleets are made in `temporary`."""

    directory: Path
    temporary: Path

    @contextlib.contextmanager
    def begin(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run its tests, which end with the block."""
        inherited = {name: value for name, value in os.environ.items() if name[:7] != "PYTEST_"}
        started = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self.directory,
            env=inherited | {"TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with ended(started) as process:
            yield process

    def pytest(self, *arguments: str) -> str:
        """Run its tests to the end, and give what pytest said."""
        with self.begin(*arguments) as running:
            said = running.communicate()[0]
        assert running.returncode == 0, said
        return said

    def fleets(self) -> list[Path]:
        """List the directories of fleets that are there."""
        return list(self.temporary.glob(f"{directory.PREFIX}*"))


@pytest.fixture
def application(server_directory: Path) -> Iterator[Application]:
    """Lay out the example of the page, an application with tests of its own."""
    made = Application(server_directory / "app", server_directory / "tmp")
    (made.directory / "migrations").mkdir(parents=True)
    made.temporary.mkdir()
    (made.directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in BLOCK.findall(PAGE.read_text()):
        (made.directory / name).write_text(text)
    yield made
    for left in made.fleets():  # of a test that failed
        stop_all_below(left)


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
    (application.directory / "test_waiting.py").write_text(WAITING)
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
    (application.directory / "migrations").mkdir()
    (application.directory / "migrations/0001_other.sql").write_text("CREATE TABLE other ()")
    (application.directory / "test_photos.py").write_text("def test_nothing(fleet): pass\n")
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
