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


CHANGES = """
UPDATE shard3.users SET name = 'changed', fields = '{"i": 0}' WHERE number <= 10;
DELETE FROM shard3.photos WHERE user_id IN (SELECT id FROM shard3.users WHERE number > 95);
DELETE FROM shard3.users WHERE number > 95;
INSERT INTO shard3.users (name, mail, both_of, span) VALUES ('new', 'new@x', '(7,x)', '[1,3)');
INSERT INTO shard3.photos (user_id) SELECT id FROM shard3.users WHERE name = 'new';
UPDATE shard3.log SET at = '2036-01-01' WHERE at = '2025-01-01';
INSERT INTO shard3.log (at) VALUES ('2026-01-01');
"""
EVERY_ROW = " UNION ALL ".join(
    f"SELECT '{table}', t::text FROM shard3.{table} AS t" for table in ("users", "photos", "log")
)


def test_a_reverse_takes_shards_and_what_came_since_to_the_older_version(
    fleet_mixed: Fleet,
) -> None:
    done = fleet_mixed.shardctl("move-shards", "2-3", "--to", "b", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    move = json.loads(done.stdout)["id"]
    before = sorted(fleet_mixed.query("b", EVERY_ROW))
    fleet_mixed.shards = {"a": "0-1", "b": "2-7"}
    fleet_mixed.execute("b", CHANGES)
    changed = sorted(fleet_mixed.query("b", EVERY_ROW))
    assert changed != before
    back = fleet_mixed.shardctl("moves", "reverse", move, "--yes")
    assert back.returncode == 0, back.stderr
    fleet_mixed.shards = {"a": "0-3", "b": "4-7"}
    assert sorted(fleet_mixed.query("a", EVERY_ROW)) == changed
    assert {finding.code for finding in verify(fleet_mixed)} == {*MIXED, "retired_kept"}
    fleet_mixed.execute("a", "INSERT INTO shard3.users (name) VALUES ('after')")
    [(last, most)] = fleet_mixed.query(
        "a", "SELECT max(number) FILTER (WHERE name = 'after'), max(number) FROM shard3.users"
    )
    assert last == most, "the sequence has fallen back"
    pruned = fleet_mixed.shardctl("prune", "--now", "--yes")
    assert pruned.returncode == 0, pruned.stderr
