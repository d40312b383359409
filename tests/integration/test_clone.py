"""Clones made and removed on real servers: what is refused, what breaks off, what is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess

import pytest

from shardctl.postgres import clone as clones
from shardctl.postgres import copying, slots
from shardctl.postgres.clone import CloneOfAnother, TargetNotEmpty
from shardctl.postgres.copying import CopyFailed
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    SLOW,
    Cloning,
    Recording,
    in_background,
    make_and_kill,
)
from tests.fixtures.servers.postgres import wait_for


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


def test_ctrl_c_ends_the_copy_and_deletes_it(cloning: Cloning) -> None:
    class Pressing(Recording):
        def advance(self, _key: str, _done: int = 1) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cloning.make(progress=Pressing(), max_rate=SLOW)
    assert cloning.left() == []
    assert cloning.workers() == []


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a directory")
def test_a_mount_point_is_refused_before_anything_is_copied(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    # On the device of its parent, as a volume of the same disk is.
    mount = ["mount", "--bind", str(cloning.data), str(cloning.data)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with raises_code("clone_refused"):
            cloning.make()
    finally:
        subprocess.run(["umount", cloning.data], check=True)  # noqa: S607
    assert cloning.left() == ["c"]


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
