"""Clones made and removed on real servers: what is refused, what breaks off, what is left."""

from __future__ import annotations

import os
import subprocess

import pytest

from shardctl.postgres import clone as clones
from shardctl.postgres import slots
from shardctl.postgres.clone import CloneOfAnother, TargetNotEmpty
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    Cloning,
    make_and_kill,
)


def test_a_directory_with_something_in_it_is_refused_and_left(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    (cloning.data / "thesis.tex").write_text("unique")
    with pytest.raises(TargetNotEmpty, match=r"thesis\.tex"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    assert (cloning.data / "thesis.tex").read_text() == "unique"
    assert cloning.left() == ["c"]


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


def test_a_promoted_clone_is_not_deleted(cloning: Cloning) -> None:
    target = cloning.start()
    cloning.promote(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
    cloning.open_up(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
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
