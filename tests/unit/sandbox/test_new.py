"""The topology that `sandbox new` writes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from shardctl.errors import UsageError
from shardctl.sandbox import new
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path


def read(**given: Any) -> Any:
    return yaml.safe_load(new.render(**{"spare": 0, "port": 6100, **given}))


def test_shards_are_spread_evenly_as_contiguous_ranges() -> None:
    nodes = read(shards=8, nodes=3, spare=1)["nodes"]
    assert {name: node["shards"] for name, node in nodes.items()} == {
        "a": "0-2",
        "b": "3-5",
        "c": "6-7",
        "d": "none",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"shards": 2, "nodes": 3},
        {"shards": 0, "nodes": 1},
        {"shards": 1, "nodes": 0},
        {"shards": 8193, "nodes": 1},
        {"shards": 1, "nodes": 1, "spare": -1},
        {"shards": 8, "nodes": 2, "spare": 2, "port": 65532},
        {"shards": 1, "nodes": 1, "port": 0},
    ],
)
def test_what_cannot_be_is_bad_usage(given: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        read(**given)


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("mine")
    with raises_code("topology_exists"):
        new.write(path, shards=1, nodes=1, spare=0, port=6100)
    assert path.read_text() == "mine"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with raises_code("topology_not_written"):
        new.write(tmp_path / "no" / "t.yaml", shards=1, nodes=1, spare=0, port=6100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as others")
def test_data_goes_where_the_servers_user_may_go(server_directory: Path) -> None:
    near = new.write(server_directory / "t.yaml", shards=1, nodes=1, spare=0, port=6100)
    assert near == server_directory / ".sandbox"
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    far = new.write(closed / "t.yaml", shards=1, nodes=1, spare=0, port=6100)
    assert str(far).startswith("/var/tmp/shardctl-sandbox-")  # noqa: S108  # where it should be
    assert f"data_directory: {far}/a" in (closed / "t.yaml").read_text()
    assert not far.exists()
