"""A topology file that cannot be written: before a move begins, and after its cutover."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.moves import handover, preflight_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.errors import ShardctlError
    from tests.fixtures.moved import MovedFleet

VALUES = "nodes.a.shards: 0-1, nodes.c.shards: 2-3"


@pytest.fixture
def mounted(moved: MovedFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of its own for the topology, and for nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    old, place = moved.write(), moved.directory / "mounted"
    place.mkdir()
    try:
        Local().run(["mount", "-t", "tmpfs", "none", str(place)])
    except CommandFailed as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    (place / "migrations").symlink_to(moved.directory / "migrations")
    shutil.copy(old, place)
    monkeypatch.setattr(type(moved), "file", place / old.name)
    yield place
    Local().run(["umount", str(place)])


def make_read_only(place: Path) -> None:
    Local().run(["mount", "-o", "remount,ro", str(place)])


def test_a_move_is_refused_where_its_outcome_could_not_be_written(
    moved: MovedFleet, mounted: Path
) -> None:
    make_read_only(mounted)
    for more in (["--dry-run"], ["--yes"]):
        done = moved.here("move-shards", "2-3", "--to", "c", *more)
        assert done.returncode == 1
        assert "could not write the new owners into this file: Read-only file" in done.stderr
        assert "name the copy with --topology" in done.stderr
    assert moved.listed() == []


def test_a_file_system_that_became_read_only_costs_no_comparison(
    moved: MovedFleet, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = handover.spread_map

    def meanwhile(*given: Any) -> None:
        make_read_only(mounted)
        spread(*given)

    monkeypatch.setattr(handover, "spread_map", meanwhile)
    before = moved.file.read_text()
    done = moved.here("move-shards", "2-3", "--to", "c", "--yes")
    assert done.returncode == 3, done.stderr
    assert "topology.yaml was not changed: " in done.stderr
    assert VALUES in done.stderr
    with moved.pg_bouncer.connect("shard2") as session:
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (0,)
    for node in ("a", "c"):
        rows = moved.query(node, "SELECT state, proof FROM shardctl.move")
        assert rows == [("routed", "compared")], node

    done = moved.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert VALUES in done.stderr
    assert [m["state"] for m in moved.listed()] == ["done"]
    assert moved.file.read_text() == before


def test_a_file_that_was_deleted_before_the_cutover_stops_the_move_before_it(
    moved: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = moved.write()
    again = preflight_source.again

    def meanwhile(*given: Any, **named: Any) -> list[ShardctlError]:
        path.rename(path.with_suffix(".gone"))
        return again(*given, **named)

    monkeypatch.setattr(preflight_source, "again", meanwhile)
    done = moved.here("move-shards", "2-3", "--to", "c", "--yes")
    monkeypatch.undo()
    path.with_suffix(".gone").rename(path)
    assert done.returncode == 3
    assert "could not write the new owners into this file: No such file" in done.stderr
    assert moved.query("a", "SELECT state FROM shardctl.move") == [("undone",)]
    done = moved.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert moved.owned()["c"] == "2-3"
    assert [m["state"] for m in moved.listed()] == ["done"]
