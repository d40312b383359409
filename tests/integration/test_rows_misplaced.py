"""`rows misplaced`: what lies in a wrong shard, by key of every kind or by id."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

TABLES = (
    "-- shardctl: key photos.user_id\n-- shardctl: key named.name\n"
    "CREATE TABLE named (name text, part integer, PRIMARY KEY (part, name));"
    "CREATE TABLE plain (id bigint PRIMARY KEY DEFAULT next_id());"
    "CREATE TABLE other (n integer);"
    "\n-- shardctl: key things.owner\n"
    'CREATE TABLE things ("The key" text, part integer, owner text, at timestamptz, raw bytea,'
    " tags text[], doc json, twice integer GENERATED ALWAYS AS (part * 2) STORED,"
    ' number integer GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (part, "The key"));'
)
THING = (
    r"""(E'it''s \\ a :tab\t\nb', 7, 'ann', '2011-09-09 22:28:04.721+02', '\\x00ff5c',"""
    r""" ARRAY['a,b', NULL, '"'], '{"a": [1, null]}')"""
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
    assert "a\\tb" in fleet.here("rows", "misplaced").stdout


def test_a_table_that_is_not_there_and_a_fleet_without_the_function(fleet: Fleet) -> None:
    done = fleet.here("rows", "misplaced", "--table", "nowhere")
    assert done.returncode == 2
    fleet.execute("a", "DROP FUNCTION shardctl.shard_of(text)")
    done = fleet.here("rows", "misplaced", "0")
    assert done.returncode == 1
    assert "shardctl.shard_of" in done.stderr


def run(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Carry out what `--sql` writes, as an operator does."""
    script = fleet.here("rows", "misplaced", "--sql", *arguments)
    assert script.returncode == 1, script.stderr
    file = fleet.directory / "move.sql"
    file.write_text(script.stdout)
    first = script.stdout.splitlines()[0].partition("run it: ")[2]
    return subprocess.run(
        shlex.split(first.replace("FILE", str(file))), capture_output=True, check=False, text=True
    )


def test_its_statements_move_rows_with_every_value(fleet: Fleet) -> None:
    values = '"The key", part, owner, at, raw, tags, doc'
    fleet.execute("b", f"INSERT INTO shard5.things ({values}) VALUES {THING}")
    whole = "SELECT {}, twice, number, t::text FROM shard{}.things AS t"
    before = fleet.query("b", whole.format(values, 5))
    fleet.execute("a", "INSERT INTO shard2.photos (id, user_id) VALUES (7, 13), (8, 2), (9, 4)")
    done = run(fleet)
    assert (done.returncode, done.stderr) == (0, "")
    assert fleet.query("a", whole.format(values, 2)) == before
    assert fleet.query("a", "SELECT id FROM shard2.photos WHERE id < 10") == [(8,)]
    assert fleet.query("b", "SELECT id, user_id FROM shard5.photos WHERE id < 10") == [(7, 13)]
    assert listed(fleet, code=0) == []


def test_a_row_that_was_changed_meanwhile_stays_and_one_in_both_shards_stops(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos (id, user_id) VALUES (7, 13)")
    script = json.loads(fleet.here("rows", "misplaced", "--sql", "-o", "json").stdout)
    [example] = script["misplaced"][0]["examples"]
    fleet.execute("a", "UPDATE shard2.photos SET user_id = 21")
    fleet.execute("b", example["insert"])
    fleet.execute("a", example["delete"])
    assert fleet.query("a", "SELECT id FROM shard2.photos WHERE id = 7") == [(7,)]
    done = run(fleet)
    assert done.returncode == 3
    assert fleet.query("a", "SELECT id FROM shard2.photos WHERE id = 7") == [(7,)]


def test_a_table_where_a_delete_would_do_more_is_left_to_people(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos (id, user_id) VALUES (7, 13)")
    fleet.execute("a", "CREATE TABLE shard2.of_photo (id bigint REFERENCES shard2.photos)")
    fleet.execute("a", "INSERT INTO shard2.other VALUES (1)")
    script = fleet.here("rows", "misplaced", "--sql").stdout
    assert "of_photo_id_fkey" in script
    assert "DELETE" not in script
