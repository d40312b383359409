"""What `verify` refuses before it contacts a node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.verify import scope, verify
from shardctl.fanout import Silent
from tests.fixtures.fleets.facts import healthy
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path


class Contacts(Silent):
    """Fails when work on a node begins."""

    def expect(self, key: str, phase: str, total: int, unit: str = "") -> None:
        raise AssertionError((key, phase, total, unit))


def test_an_unknown_check_is_bad_usage() -> None:
    with raises_code("check_not_found"):
        scope(healthy().topology, ["maps"], deep=False)


@pytest.mark.parametrize("deep", [False, True])
def test_a_malformed_key_line_is_said_before_anything_is_contacted(
    tmp_path: Path, *, deep: bool
) -> None:
    file = tmp_path / "0002_key.sql"
    file.write_text("SELECT 1;\n-- shardctl: key photos\n")
    topology = healthy().topology
    database = dataclasses.replace(topology.database, migrations=tmp_path)
    topology = dataclasses.replace(topology, database=database)
    with raises_code("key_line_invalid", match=f"{file}:2"):
        verify(topology, (), deep=deep, progress=Contacts())
