"""`rows misplaced`: what lies in a wrong shard, by key of every kind or by id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

TABLES = (
    "-- shardctl: key photos.user_id\n-- shardctl: key named.name\n"
    "CREATE TABLE named (name text, part integer, PRIMARY KEY (part, name));"
    "CREATE TABLE plain (id bigint PRIMARY KEY DEFAULT next_id());"
    "CREATE TABLE other (n integer);"
)


@pytest.fixture
def fleet(fleet_8: Fleet) -> Fleet:
    fleet_8.migration("0002_tables.sql", TABLES)
    fleet_8.init()
    for shard in range(8):
        node = "a" if shard < 4 else "b"
        fleet_8.execute(node, f"INSERT INTO shard{shard}.photos (user_id) VALUES ({shard})")
        fleet_8.execute(node, f"INSERT INTO shard{shard}.plain DEFAULT VALUES")
    return fleet_8


def listed(fleet: Fleet, *arguments: str, code: int = 1) -> list[Any]:
    done = fleet.here("rows", "misplaced", *arguments, "-o", "json")
    assert done.returncode == code, done.stderr
    return [
        (one["table"], one["shard"], one["belongs_to"], one["by"], one["rows"],
         [(e["primary_key"], e["value"]) for e in one["examples"]])
        for one in json.loads(done.stdout)["misplaced"]
    ]  # fmt: skip


def test_a_fleet_whose_rows_are_right_has_nothing_to_list(fleet: Fleet) -> None:
    assert listed(fleet, code=0) == []
    assert fleet.here("rows", "misplaced").stdout == "no row is in a wrong shard\n"


def test_rows_are_listed_with_the_shard_that_they_belong_to(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos (id, user_id) VALUES (7, 13), (8, -3), (9, 4)")
    fleet.execute("b", "INSERT INTO shard5.named VALUES (E'a\\tb', 1), ('ann', 2)")
    [(foreign,)] = fleet.query("b", "INSERT INTO shard4.plain DEFAULT VALUES RETURNING id")
    fleet.execute("a", f"INSERT INTO shard0.plain VALUES ({foreign}), (-1)")
    [(tabbed,)] = fleet.query("a", "SELECT shardctl.shard_of(E'a\\tb')")
    assert tabbed not in (2, 5)
    names = sorted([(tabbed, "1,a\tb", "a\tb"), (2, "2,ann", "ann")])
    assert listed(fleet) == [
        *(("named", 5, belongs, "key", 1, [(key, value)]) for belongs, key, value in names),
        ("photos", 2, 4, "key", 1, [("9", "4")]),
        ("photos", 2, 5, "key", 2, [("7", "13"), ("8", "-3")]),
        ("plain", 0, 4, "id", 1, [(str(foreign), str(foreign))]),
    ]
    assert [one[:3] for one in listed(fleet, "2", "--limit", "1")] == [
        ("photos", 2, 4), ("photos", 2, 5)
    ]  # fmt: skip
    assert [one[:3] for one in listed(fleet, "--table", "plain")] == [("plain", 0, 4)]
    shown = fleet.here("rows", "misplaced", "--limit", "1", "-o", "tsv", "--table", "photos")
    assert shown.stdout == "photos\t2\ta\t4\tuser_id\t4\t9\nphotos\t2\ta\t5\tuser_id\t13\t7\n"
    assert "2 of 3 rows listed" in shown.stderr
    assert "a\\tb" in fleet.here("rows", "misplaced").stdout


def test_a_table_that_is_not_there_and_a_fleet_without_the_function(fleet: Fleet) -> None:
    done = fleet.here("rows", "misplaced", "--table", "nowhere")
    assert done.returncode == 2
    assert "no shard has a table 'nowhere'" in done.stderr
    assert "named, photos, plain" in done.stderr
    fleet.execute("a", "DROP FUNCTION shardctl.shard_of(text)")
    done = fleet.here("rows", "misplaced", "0")
    assert done.returncode == 1
    assert "shard 0: table named: function shardctl.shard_of(text) does not exist" in done.stderr
    assert "shardctl init" in done.stderr
