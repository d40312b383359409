"""The topology that `sandbox new` writes."""

from __future__ import annotations

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


def test_more_nodes_than_shards_are_bad_usage() -> None:
    with pytest.raises(UsageError):
        read(shards=2, nodes=3)


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("mine")
    with raises_code("topology_exists"):
        new.write(path, shards=1, nodes=1, spare=0, port=6100)
    assert path.read_text() == "mine"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with raises_code("topology_not_written"):
        new.write(tmp_path / "no" / "t.yaml", shards=1, nodes=1, spare=0, port=6100)
