"""The result of the last verify, which `metrics` reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.last_verify import LastVerify, file, read, record
from shardctl.checks.verify import Report
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.topology.model import Topology

REPORT = Report("test", ("map",), (), nodes=1, shards=1, poolers=0, elapsed_ms=5)


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    return local_topology(tmp_path, local_node(tmp_path, "a", 1, range(1)))


def test_what_was_recorded_last_is_read(tmp_path: Path, topology: Topology) -> None:
    state = tmp_path / "state" / "shardctl"
    assert read(state, topology) is None
    record(state, topology, REPORT, at=5.5)
    record(state, topology, REPORT, at=7.25)
    assert read(state, topology) == LastVerify(7.25, {"error": 0, "warning": 0, "note": 0})
    assert [one.stat().st_mode & 0o777 for one in state.iterdir()] == [0o600]


def test_clusters_of_one_name_are_kept_apart_by_their_files(
    tmp_path: Path, topology: Topology
) -> None:
    record(tmp_path, topology, REPORT, at=5)
    assert read(tmp_path, dataclasses.replace(topology, path=tmp_path / "other.yaml")) is None
    link = tmp_path / "link.yaml"
    link.symlink_to(topology.path)
    assert read(tmp_path, dataclasses.replace(topology, path=link)) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"at": "x", "counts": {}}', "\udcff"])
def test_a_file_that_is_damaged_counts_as_no_run(
    tmp_path: Path, topology: Topology, text: str
) -> None:
    file(tmp_path, topology).write_text(text, errors="surrogateescape")
    assert read(tmp_path, topology) is None
