"""Clones made and removed on real servers: what is refused, what breaks off, what is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import Interrupted
from shardctl.postgres import clone as clones
from shardctl.postgres import copying, slots, standby
from shardctl.postgres.clone import CloneOfAnother, TargetNotEmpty
from shardctl.postgres.copying import CopyFailed
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    SLOW,
    Cloning,
    Recording,
    in_background,
    make_and_kill,
    photos,
)
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from pathlib import Path


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")


def test_a_clone_is_made_once_with_its_progress_told(
    cloning: Cloning, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shardctl.hosts")
    looks: set[int] = set()

    class Counting(Recording):
        def advance(self, key: str, done: int = 1) -> None:
            super().advance(key, done)
            looks.add(sum(" look " in one.getMessage() for one in caplog.records))

    told = Counting()
    cloning.data.mkdir(parents=True)  # an empty directory is used
    cloning.data.chmod(0o755)
    cloning.make(progress=told, max_rate="32M")
    assert cloning.state() == "made"
    assert cloning.left() == ["c"]
    # The server's last files are seen only where they take it a moment.
    assert [phase for phase in told.phases if phase != "finishing"][-1] == "copying"
    total = told.phases["copying"]
    assert 0 < told.done["copying"] <= total * 1.01
    assert len(looks) == 1  # its host is asked nothing in the meantime
    made = (cloning.data / "PG_VERSION").stat().st_mtime_ns
    cloning.make()
    assert (cloning.data / "PG_VERSION").stat().st_mtime_ns == made
    assert cloning.data.stat().st_mode & 0o777 == 0o700


def test_a_directory_with_something_in_it_is_refused_and_left(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    (cloning.data / "thesis.tex").write_text("unique")
    with pytest.raises(TargetNotEmpty, match=r"thesis\.tex"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    assert (cloning.data / "thesis.tex").read_text() == "unique"
    assert cloning.left() == ["c"]


@pytest.mark.long
def test_the_copy_of_a_killed_shardctl_is_gone_on_with(cloning: Cloning) -> None:
    make_and_kill(cloning)
    workers = cloning.workers()
    assert cloning.state() == "copying"
    cloning.at_source().execute("INSERT INTO photos VALUES (-1, 'while nobody watched')")
    cloning.make()
    assert cloning.state() == "made"
    assert workers
    assert cloning.workers() == []
    assert cloning.left() == ["c"]
    standby.start(cloning.clone)
    assert photos(cloning.follow()) == photos(cloning.at_source())


def test_a_shell_in_the_directory_of_the_copy_is_not_taken_for_it(cloning: Cloning) -> None:
    make_and_kill(cloning)
    command = ["sleep", "60"]
    with ended(subprocess.Popen(command, cwd=cloning.clone.work)) as looker:
        assert clones.remove(cloning.clone)
        assert cloning.left() == []
        assert cloning.workers() == []
        assert looker.poll() is None


def test_a_killed_pg_basebackup_is_an_error_that_leaves_nothing(
    cloning: Cloning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_LOOK_S", 0.1)  # its helper keeps the source's session
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW))
    cloning.copying()
    os.kill(cloning.program(), signal.SIGKILL)
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert cloning.left() == []
    wait_for(lambda: cloning.workers() == [])
    cloning.make()
    assert cloning.state() == "made"


def test_a_stop_ends_the_copy_and_deletes_it(cloning: Cloning) -> None:
    stop = threading.Event()
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW, stop=stop))
    cloning.copying()
    stop.set()
    thread.join()
    assert isinstance(raised[0], Interrupted)
    assert raised[0].hint
    assert cloning.left() == []
    assert cloning.workers() == []


@pytest.mark.long
def test_a_source_that_is_killed_is_an_error_and_can_be_cloned_later(
    cloning_spare: Cloning,
) -> None:
    cloning = cloning_spare
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW))
    cloning.copying()
    cloning.server.stop("immediate")
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert "terminat" in raised[0].message or "closed" in raised[0].message
    assert cloning.left() == []
    cloning.server.start()
    cloning.make()
    assert cloning.state() == "made"


@needs_root
def test_a_full_disk_is_an_error_that_leaves_nothing(cloning: Cloning) -> None:
    disk = cloning.data.parent
    disk.mkdir()
    if not _mounted(disk, "size=18m,mode=755"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(CopyFailed):
            cloning.make()
        assert cloning.left() == []
        subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)  # noqa: S607
        cloning.make()
        assert cloning.state() == "made"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)  # noqa: S607


@needs_root
def test_a_mount_point_is_refused_before_anything_is_copied(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    if not _mounted(cloning.data, "size=1m"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        with raises_code("clone_refused"):
            cloning.make()
    finally:
        subprocess.run(["umount", cloning.data], check=True)  # noqa: S607
    assert cloning.left() == ["c"]


def _mounted(place: Path, options: str) -> bool:
    argv = ["mount", "-t", "tmpfs", "-o", options, "shardctl-test", str(place)]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@pytest.mark.long
def test_the_clone_of_another_move_is_refused_and_left(cloning: Cloning) -> None:
    make_and_kill(cloning)
    mine, other = cloning.move, "0badc0de"
    cloning.move = other
    cloning.stack.callback(slots.drop, cloning.at_source(), cloning.clone.slot)
    with pytest.raises(CloneOfAnother, match=mine):
        cloning.make()
    assert not clones.remove(cloning.clone)
    with pytest.raises(CloneOfAnother):
        clones.discard(cloning.clone)
    cloning.move = mine
    assert cloning.state() == "copying"
    cloning.make()
    cloning.move = other
    with pytest.raises(CloneOfAnother, match=mine):
        cloning.make()
    assert not clones.remove(cloning.clone)
    cloning.move = mine
    assert cloning.state() == "made"
    assert cloning.ask(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '{mine}'") == 1


def test_what_a_killed_making_or_removing_leaves_is_deleted_by_the_next(cloning: Cloning) -> None:
    trash = cloning.data.with_name(f"c.clone.{cloning.move}")
    (trash / "base").mkdir(parents=True)
    assert not clones.remove(cloning.clone)
    assert cloning.left() == []
    (trash / "base").mkdir(parents=True)
    cloning.make()
    assert cloning.left() == ["c"]
    # Killed when the copy has its name, and the rest is not deleted yet.
    cloning.clone.work.mkdir()
    (cloning.clone.work / "move").write_text(cloning.move)
    cloning.make()
    assert cloning.left() == ["c"]


def test_a_promoted_clone_is_not_deleted(cloning: Cloning) -> None:
    target = cloning.start()
    cloning.promote(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
    cloning.open_up(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
    clones.keep(cloning.clone)
    clones.keep(cloning.clone)
    assert not clones.remove(cloning.clone)
    assert target.execute("SELECT 1").fetchone() == (1,)
