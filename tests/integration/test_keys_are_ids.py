"""`shards: {key: id}`: an id that a shard made is the key of everything that belongs to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import errors

from shardctl.router import ShardedDatabase
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

TABLES = (
    "CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), name text);\n"
    "-- shardctl: key users.id check\n"
    "CREATE TABLE likes (user_id bigint, photo bigint, PRIMARY KEY (user_id, photo));\n"
    "-- shardctl: key likes.user_id\n"
    "CREATE TABLE tags (name text PRIMARY KEY);\n"
    "-- shardctl: key tags.name check\n"
)
NO_SHARDS = 4_035_225_266_123_964_416 | 5000 << 10
"""An id that shard 5000 would have made."""


@pytest.fixture
def fleet(new_fleet: Fleet) -> Fleet:
    new_fleet.count, new_fleet.key = 16, "id"
    new_fleet.shards = {"a": "0-7", "b": "8-15"}
    new_fleet.migration("0002_tables.sql", TABLES)
    new_fleet.copy()
    return new_fleet


def node(shard: int) -> str:
    return "a" if shard < 8 else "b"


def new_user(fleet: Fleet, shard: int) -> int:
    made = fleet.query(node(shard), f"INSERT INTO shard{shard}.users DEFAULT VALUES RETURNING id")
    return int(made[0][0])


def found(fleet: Fleet) -> list[Any]:
    """Give what `verify --deep` finds of ids, keys and functions; tags have keys of text."""
    checks = ("--check", "ids", "--check", "generator", "--check", "identity")
    done = fleet.here("verify", "--deep", *checks, "-o", "json")
    return [
        (f["code"], f["shards"])
        for f in json.loads(done.stdout)["findings"]
        if f["code"] != "key_unread"
    ]


def misplaced(fleet: Fleet, code: int = 1) -> list[Any]:
    done = fleet.here("rows", "misplaced", "-o", "json")
    assert done.returncode == code, done.stderr
    return [
        (one["table"], one["shard"], one["belongs_to"], one["by"], one["rows"])
        for one in json.loads(done.stdout)["misplaced"]
    ]


def test_an_id_is_its_own_key_everywhere(fleet: Fleet) -> None:
    ids = {shard: new_user(fleet, shard) for shard in range(16)}
    done = fleet.here("route", *map(str, ids.values()), "-o", "json")
    assert [json.loads(line)["shard"] for line in done.stdout.splitlines()] == list(ids)
    with ShardedDatabase(fleet.topology(), through="nodes") as db:
        assert [db.shard_of(one) for one in ids.values()] == list(ids)
        assert [db.shard_of_id(one) for one in ids.values()] == list(ids)
        for one in ids.values():
            db.insert("likes", one, {"user_id": one, "photo": 1}, returning=None)
        db.insert("tags", "ann", {"name": "ann"}, returning=None)
        one, name = db.insert_new("users", {"name": "bob"}, returning=["id", "name"])
        assert (db.shard_of(one), name) == (db.shard_of_id(one), "bob")
        assert db.select("name", "users", one, "id = %s", [one]) == [("bob",)]
        with raises_code("id_given"):
            db.insert_new("users", {"id": one})
        with raises_code("key_not_an_id"):
            db.shard_of(NO_SHARDS)
    assert (found(fleet), misplaced(fleet, 0)) == ([], [])
    refused = fleet.here("route", str(NO_SHARDS), "-1", "ann", "-o", "tsv")
    assert refused.returncode == 2
    assert "-1" in refused.stderr
    assert refused.stdout.startswith("ann\t")


def test_rows_of_other_shards_and_of_none_are_refused_or_found(fleet: Fleet) -> None:
    own, other = new_user(fleet, 2), new_user(fleet, 9)
    for wrong in (other, NO_SHARDS, -1):
        with pytest.raises(errors.CheckViolation):
            fleet.execute("a", f"INSERT INTO shard2.users VALUES ({wrong})")
    fleet.execute("a", f"INSERT INTO shard2.likes VALUES ({own}, 1), ({other}, 1), (-7, 1)")
    assert found(fleet) == [("no_key", [2]), ("other_key", [2])]
    assert misplaced(fleet) == [("likes", 2, 9, "key", 1)]


def test_a_topology_with_the_other_rule_is_refused(fleet: Fleet) -> None:
    fleet.key = "modulo"
    for command in ("migrate", "init"):
        done = fleet.here(command)
        assert (done.returncode, "shards.key" in done.stderr) == (1, True)
    assert ("differs", []) in found(fleet)
