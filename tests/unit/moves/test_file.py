"""Whether the outcome of a move could be written into the topology file, before it begins."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import file
from shardctl.moves import plan as planning
from shardctl.topology import loader

if TYPE_CHECKING:
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
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


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
    wrong = list(file.problems(read, plan))
    assert (path.lstat() if path.exists() else None) == was
    assert all(one.code == "topology_file" for one in wrong)
    return bool(wrong)


def test_a_value_that_cannot_be_changed_in_place_is_found(topology: Path) -> None:
    another = "  d: {host: j, port: 1, shards: *none}\n"
    topology.write_text(TEXT.replace("shards: none", "shards: &none none") + another)
    assert found(topology)


@needs_root
def test_a_directory_that_an_ordinary_user_may_not_write_is_found(topology: Path) -> None:
    other = pwd.getpwnam("nobody").pw_uid
    for owner, mode, unfit in ((other, 0o755, True), (0, 0o1777, True), (other, 0o1777, False)):
        os.chown(topology, owner, -1)
        topology.parent.chmod(mode)
        os.seteuid(other)
        try:
            assert found(topology) == unfit
        finally:
            os.seteuid(0)


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
        file.write(read, plan)
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
            file.write(read, plan)
        assert topology.read_text() == text
