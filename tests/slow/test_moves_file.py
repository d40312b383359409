"""A topology file that cannot be written: before a move begins, and after its cutover."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.moves.preflight import check as preflight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.errors import ShardctlError
    from tests.fixtures.moves.spares import MovedFleet

VALUES = "nodes.a.shards: 0-1, nodes.c.shards: 2-3"


@pytest.fixture
def mounted(fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of its own for the topology, and for nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    old, place = fleet_spares.write(), fleet_spares.directory / "mounted"
    place.mkdir()
    try:
        Local().run(["mount", "-t", "tmpfs", "none", str(place)])
    except CommandFailed as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    (place / "migrations").symlink_to(fleet_spares.directory / "migrations")
    shutil.copy(old, place)
    monkeypatch.setattr(type(fleet_spares), "file", place / old.name)
    yield place
    Local().run(["umount", str(place)])


def make_read_only(place: Path) -> None:
    Local().run(["mount", "-o", "remount,ro", str(place)])


def test_a_file_that_was_deleted_before_the_cutover_stops_the_move_before_it(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fleet_spares.write()
    again = preflight.again

    def meanwhile(*given: Any, **named: Any) -> list[ShardctlError]:
        path.rename(path.with_suffix(".gone"))
        return again(*given, **named)

    monkeypatch.setattr(preflight, "again", meanwhile)
    done = fleet_spares.here("move-shards", "2-3", "--to", "c", "--yes")
    monkeypatch.undo()
    path.with_suffix(".gone").rename(path)
    assert done.returncode == 3
    assert "could not write the new owners into this file: No such file" in done.stderr
    assert fleet_spares.query("a", "SELECT state FROM shardctl.move") == [("undone",)]
    done = fleet_spares.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert fleet_spares.owned()["c"] == "2-3"
    assert [m["state"] for m in fleet_spares.listed()] == ["done"]
