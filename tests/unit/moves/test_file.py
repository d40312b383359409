"""Whether the outcome of a move could be written into the topology file, before it begins."""

from __future__ import annotations

import os
import pwd
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.moves import file
from shardctl.moves import plan as planning
from shardctl.topology import loader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.moves.plan import MovePlan
    from shardctl.topology.model import Topology

TEXT = """\
cluster: photos
shards: {count: 4}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-3}
  c: {host: i, port: 1, shards: none, data_directory: /c}
"""
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root mounts, marks and becomes another user")


@pytest.fixture
def topology(server_directory: Path) -> Path:
    """A topology in a directory into which every user may go."""
    path = server_directory / "its own" / "topology.yaml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def found(path: Path) -> bool:
    """Tell whether a move of shards 2 and 3 finds the file unfit; nothing is changed."""
    read = loader.load(path)
    plan = planning.make(read, [2, 3], "c", 1, planning.Options(5.0, 0.0))
    was = path.lstat() if path.exists() else None
    wrong = file.problems(read, plan)
    assert (path.lstat() if path.exists() else None) == was
    assert all(one.code == "topology_file" for one in wrong)
    return bool(wrong)


@contextmanager
def run(*commands: list[str], undo: list[str]) -> Iterator[None]:
    """Change something about a file system; where this machine cannot do that, skip the test."""
    try:
        for command in commands:
            Local().run(command)
        yield
    except CommandFailed as error:
        pytest.skip(f"this machine cannot do that: {error}")
    finally:
        Local().run(undo)


def test_a_file_that_can_be_replaced_is_fit_though_its_mode_forbids_writing(
    topology: Path,
) -> None:
    assert not found(topology)
    topology.chmod(0o444)
    assert not found(topology)
    link = topology.with_name("link.yaml")
    link.symlink_to(topology)
    assert not found(link)


def test_a_value_that_cannot_be_changed_in_place_is_found(topology: Path) -> None:
    topology.write_text(TEXT.replace("shards: none", "shards: &none none"))
    assert found(topology)


def test_a_file_that_was_deleted_is_found(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = planning.make

    def delete(*given: Any) -> MovePlan:
        topology.unlink()
        return make(*given)

    monkeypatch.setattr(planning, "make", delete)
    assert found(topology)


@needs_root
def test_what_is_a_mount_point_or_immutable_is_found(topology: Path) -> None:
    file, folder = str(topology), str(topology.parent)
    for do, undo in (
        (["mount", "--bind", file, file], ["umount", file]),
        (["chattr", "+i", file], ["chattr", "-i", file]),
        (["chattr", "+a", file], ["chattr", "-a", file]),
        (["chattr", "+i", folder], ["chattr", "-i", folder]),
    ):
        with run(do, undo=undo):
            assert found(topology)


@needs_root
def test_a_directory_that_an_ordinary_user_may_not_write_is_found(topology: Path) -> None:
    other = pwd.getpwnam("nobody")
    os.chown(topology, other.pw_uid, other.pw_gid)
    folder = topology.parent
    os.seteuid(other.pw_uid)
    try:
        assert found(topology)
    finally:
        os.seteuid(0)
    folder.chmod(0o1777)
    os.chown(topology, 0, 0)
    os.seteuid(other.pw_uid)
    try:
        assert found(topology)
    finally:
        os.seteuid(0)
    os.chown(topology, other.pw_uid, other.pw_gid)
    os.seteuid(other.pw_uid)
    try:
        assert not found(topology)
    finally:
        os.seteuid(0)


def test_shards_in_hundreds_of_ranges_are_written_in_short_lines(topology: Path) -> None:
    topology.write_text(TEXT.replace("count: 4", "count: 2000").replace("0-3", "0-1999"))
    read = loader.load(topology)
    plan = planning.make(read, range(0, 2000, 3), "c", 1, planning.Options(5.0, 0.0))
    after = planning.after(read, plan)
    file.write(read, plan, after)
    assert loader.load(topology) == after
    assert max(map(len, topology.read_text().splitlines())) <= 100


FOUR = TEXT.replace("shards: 0-3", "shards: 0-1") + "  b: {host: h, port: 2, shards: 2-3}\n"
FOUR += "  d: {host: i, port: 2, shards: none, data_directory: /d}\n"


def moved(topology: Path, shard: int, to: str) -> tuple[Topology, MovePlan]:
    """Read the file, and plan a move by it."""
    read = loader.load(topology)
    return read, planning.make(read, [shard], to, 1, planning.Options(5.0, 0.0))


def test_moves_that_read_the_file_together_keep_each_others_owners(topology: Path) -> None:
    topology.write_text(FOUR)
    both = [moved(topology, 1, "c"), moved(topology, 3, "d")]
    for read, plan in both:
        file.write(read, plan, planning.after(read, plan))
    now = {name: node.shards for name, node in loader.load(topology).nodes.items()}
    assert now == {"a": (0,), "b": (2,), "c": (1,), "d": (3,)}


def test_a_file_that_has_changed_otherwise_is_not_written(topology: Path) -> None:
    topology.write_text(FOUR)
    read, plan = moved(topology, 1, "c")
    for text in (
        FOUR.replace("port: 2", "port: 3"),
        FOUR.replace("2-3", "1-3").replace("0-1", "0"),
    ):
        topology.write_text(text)
        with pytest.raises(file.FileNotEdited, match="changed after shardctl read it"):
            file.write(read, plan, planning.after(read, plan))
        assert topology.read_text() == text
