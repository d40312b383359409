"""A fleet of two major versions: what compares its nodes, and moves to the newer one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

pytestmark = pytest.mark.embedded

MIXED = {"version_differs", "not_compared"}


def test_a_move_to_the_newer_version_keeps_everything_and_no_copy_goes_back(
    fleet_mixed: Fleet,
) -> None:
    there = ("move-shards", "2-3", "--to", "b", "--keep-reverse", "0", "--yes")
    done = fleet_mixed.shardctl(*there, "-o", "json")
    assert done.returncode == 0, done.stderr
    fleet_mixed.shards = {"a": "0-1", "b": "2-7"}
    codes = {finding.code for finding in verify(fleet_mixed)}
    assert codes == {*MIXED, "retired_kept"}
    assert fleet_mixed.plan().changes() == []
    assert fleet_mixed.query("b", "SELECT count(*), max(both_of::text) FROM shard3.users") == [
        (100, "(99,it's)")
    ]
    back = fleet_mixed.shardctl("move-shards", "2", "--to", "a", "--dry-run", "-o", "json")
    assert back.returncode == 1
    older, newer = (
        fleet_mixed.query(node, "SHOW server_version")[0][0] for node in fleet_mixed.servers
    )
    said = [error["message"] for error in json.loads(back.stdout)["errors"]]
    assert any(older in message and newer in message for message in said)
    doctor = fleet_mixed.shardctl("moves", "doctor", "--dry-run", "-o", "json")
    assert doctor.returncode == 0, doctor.stdout
    for command in (("status",), ("prune", "--now", "--yes")):
        ran = fleet_mixed.shardctl(*command)
        assert ran.returncode == 0, (command, ran.stderr)
