"""What test fleets start from: made once, whole, and again where anything has changed."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from shardctl.testing import directory, fleet
from shardctl.topology import loader
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardctl.topology.model import Topology

FILE = """
cluster: photos
shards: {count: 16}
database: {name: app, app_roles: [web], migrations: migrations}
nodes:
  a: {host: 10.0.0.1, port: 5432, shards: 0-15}
"""


@pytest.fixture
def temporary(server_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(server_directory))
    return server_directory


def application(at: Path, text: str = FILE, migration: str = "SELECT 1") -> Topology:
    (at / "migrations").mkdir(parents=True)
    (at / "migrations" / "0001_one.sql").write_text(migration)
    (at / "topology.yaml").write_text(text)
    return loader.load(at / "topology.yaml")


def packs(what: Path, text: str, made: list[str]) -> Callable[[Path], None]:
    """Give what packs a file with a text, and notes that."""

    def make(to: Path) -> None:
        made.append(text)
        (what / "file").write_text(text)
        fleet.pack_template(what, ["file"], to)

    return make


def test_the_name_changes_with_what_a_fleet_is_made_of(tmp_path: Path) -> None:
    def named(at: str, shards: int = 16, nodes: int = 2, **given: str) -> str:
        return fleet.template_name(application(tmp_path / at, **given), shards=shards, nodes=nodes)

    same = named("1")
    assert named("elsewhere") == same
    assert named("moved", text=FILE.replace("10.0.0.1, port: 5432", "10.0.0.2, port: 5433")) == same
    others = {
        named("migration", migration="SELECT 2"),
        named("key", text=FILE.replace("count: 16", "count: 16, key: id")),
        named("role", text=FILE.replace("web", "other")),
        named("shards", shards=8),
        named("nodes", nodes=3),
    }
    assert len(others | {same}) == 6


def test_what_failed_or_was_killed_is_made_again(temporary: Path) -> None:
    into = temporary / "into"
    into.mkdir()

    def fails(to: Path) -> None:
        to.write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fleet.unpack_template("one", into, fails)
    folder = temporary / f"{fleet.TEMPLATES}{os.geteuid()}"
    (folder / "killed.new").write_text("half")
    made: list[str] = []
    fleet.unpack_template("one", into, packs(temporary, "again", made))
    assert (into / "file").read_text() == "again"
    assert sorted(file.name for file in folder.iterdir()) == ["lock", "one.tar"]


def test_a_directory_that_others_can_write_is_refused(temporary: Path) -> None:
    folder = temporary / f"{fleet.TEMPLATES}{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert directory.base() == temporary
    with raises_code("templates_refused"):
        fleet.unpack_template("one", temporary, packs(temporary, "one", []))
