"""`rows move`: rows reach their shards once, whole, or stay where they are with a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.state import lock
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.fleets.fleet import Fleet

TABLES = """
-- shardctl: key photos.user_id
-- shardctl: key things.owner
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE things (
    "The key" text COLLATE "C", part integer, owner text,
    amount numeric, at timestamptz, span interval, raw bytea, ratio float8, tags text[], doc jsonb,
    feeling mood, blank char(5), twice integer GENERATED ALWAYS AS (part * 2) STORED,
    number integer GENERATED ALWAYS AS IDENTITY, here xml, address inet, dropped integer,
    PRIMARY KEY (part, "The key") INCLUDE (amount)
);
ALTER TABLE things DROP COLUMN dropped;
"""
THING = (
    "E'tab\\tnewline\\n\\\\.', 7, 'ann', 1e-30, '2011-09-09 22:28:04.721+02', '1 mon -3 days',"
    " '\\x00ff5c', 'NaN', ARRAY['a,b', NULL, '\"'], '{\"a\": [1, null]}', 'bad', 'x',"
    " '<a>&amp;</a>', '10.0.0.1/24'"
)


@pytest.fixture
def fleet(fleet_8: Fleet) -> Fleet:
    fleet_8.migration("0002_tables.sql", TABLES)
    fleet_8.init()
    return fleet_8


def move(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return fleet.here("rows", "move", *arguments, "--yes")


def photos(fleet: Fleet) -> dict[int, list[tuple[int, int]]]:
    """Give id and user of all photos, by shard."""
    found = {
        n: fleet.query("a" if n < 4 else "b", f"SELECT id, user_id FROM shard{n}.photos ORDER BY 1")
        for n in range(8)
    }
    return {shard: rows for shard, rows in found.items() if rows}


def journal(fleet: Fleet) -> int:
    """Count the copies that are written down as not settled, on both nodes."""
    return sum(
        fleet.query(node, "SELECT count(*) FROM shardctl.row_copy")[0][0]
        for node in "ab"
        if fleet.query(node, "SELECT to_regclass('shardctl.row_copy') IS NOT NULL")[0][0]
    )


def test_rows_reach_their_shards_on_this_node_and_on_others(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 2), (2, 3), (3, 5), (4, -3), (5, 13)")
    shown = fleet.here("rows", "move", "--dry-run", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert [
        (m["table"], m["source_shard"], m["source"], m["target_shard"], m["target"], m["rows"])
        for m in json.loads(shown.stdout)["moves"]
    ] == [("photos", 2, "a", 3, "a", 1), ("photos", 2, "a", 5, "b", 3)]
    assert photos(fleet) == {2: [(1, 2), (2, 3), (3, 5), (4, -3), (5, 13)]}
    done = move(fleet)
    assert done.returncode == 0, done.stderr
    assert "done: 4 rows moved" in done.stderr
    assert photos(fleet) == {2: [(1, 2)], 3: [(2, 3)], 5: [(3, 5), (4, -3), (5, 13)]}
    assert journal(fleet) == 0
    assert "nothing to do" in move(fleet).stdout
    events = "SELECT result FROM shardctl.event WHERE command = 'rows move' ORDER BY 1"
    assert fleet.query("b", events) == [("copied 3 rows of photos: shard 2 to 5",)]
    assert ("deleted 3 rows of photos: shard 2 to 5",) in fleet.query("a", events)


def test_every_value_arrives_as_it_was(fleet: Fleet) -> None:
    # ann is a key of shard 2.
    columns = (
        '"The key", part, owner, amount, at, span, raw, ratio, tags, doc, feeling, blank, here,'
        " address"
    )
    fleet.execute("b", f"SET search_path = shard5; INSERT INTO things ({columns}) VALUES ({THING})")
    whole = "SELECT t::text FROM shard{}.things AS t"
    before = fleet.query("b", whole.format(5))
    fleet.execute("a", "ALTER DATABASE " + fleet.database + " SET DateStyle = 'SQL, DMY'")
    assert move(fleet).returncode == 0
    fleet.execute("a", "ALTER DATABASE " + fleet.database + " RESET DateStyle")
    assert fleet.query("b", whole.format(5)) == []
    assert fleet.query("a", whole.format(2)) == before


def test_many_rows_in_several_batches(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard1.photos SELECT i, i FROM generate_series(1, 4000) i")
    assert move(fleet).returncode == 0
    found = photos(fleet)
    assert {shard: len(rows) for shard, rows in found.items()} == dict.fromkeys(range(8), 500)
    assert all(user % 8 == shard for shard, rows in found.items() for _, user in rows)


def test_a_batch_is_small_where_rows_are_large(fleet: Fleet) -> None:
    """Applications that change a row of a batch wait until all of it is moved."""
    fleet.execute(
        "a",
        'INSERT INTO shard3.things ("The key", part, owner, doc)'
        " SELECT i, i, 'ann', to_jsonb(repeat('x', 400000)) FROM generate_series(1, 7) i",
    )
    assert move(fleet).returncode == 0
    copied = "SELECT result FROM shardctl.event WHERE result LIKE 'copied%things%' ORDER BY id"
    assert [result.split()[1] for (result,) in fleet.query("a", copied)] == ["2", "2", "2", "1"]


def test_names_of_things_in_the_shard_name_those_of_the_right_shard(fleet: Fleet) -> None:
    table = "CREATE TABLE named (k integer PRIMARY KEY, r regclass, t regtype[]);"
    fleet.migration("0003_x.sql", f"-- shardctl: key named.k\n{table}")
    fleet.init()
    fleet.execute(
        "a",
        "INSERT INTO shard2.named VALUES"
        " (5, 'shard2.things', '{shard2.mood,int4}'), (13, 'pg_class', '{}')",
    )
    assert move(fleet).returncode == 0
    assert fleet.query("b", "SELECT k, r::text, t::text FROM shard5.named ORDER BY k") == [
        (5, "shard5.things", "{shard5.mood,integer}"),
        (13, "pg_class", "{}"),
    ]


def test_another_row_with_the_same_key_stays_and_its_like_is_no_conflict(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5), (2, 5), (3, 5)")
    fleet.execute("b", "INSERT INTO shard5.photos VALUES (1, 13), (2, 5)")
    done = move(fleet)
    assert done.returncode == 3
    assert "primary key 1: shard 5 has a different row with this key" in done.stderr
    assert photos(fleet) == {2: [(1, 5)], 5: [(1, 13), (2, 5), (3, 5)]}
    assert journal(fleet) == 0
    again = move(fleet)
    assert again.returncode == 1
    assert photos(fleet) == {2: [(1, 5)], 5: [(1, 13), (2, 5), (3, 5)]}


def test_a_row_that_the_target_refuses_stays_alone(fleet: Fleet) -> None:
    fleet.execute("b", "CREATE UNIQUE INDEX ON shard5.photos (user_id)")
    fleet.execute("b", "INSERT INTO shard5.photos VALUES (99, 13)")
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5), (2, 13), (3, 21)")
    done = move(fleet)
    assert done.returncode == 3
    assert "primary key 2: shard 5 rejects it: duplicate key" in done.stderr
    assert "fix the reason why shard 5 rejects the rows, and run the command again" in done.stderr
    # Shard 5 may have no such row at all.
    assert "delete" not in done.stderr
    assert photos(fleet) == {2: [(2, 13)], 5: [(1, 5), (3, 21), (99, 13)]}


def test_a_row_in_use_is_left_and_the_others_move(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5), (2, 5)")
    with fleet.connect("a", autocommit=False) as writer:
        writer.execute("UPDATE shard2.photos SET user_id = 13 WHERE id = 1")
        done = move(fleet)
        assert done.returncode == 3
        assert "1 rows are in use by other sessions" in done.stderr
        writer.commit()
    assert photos(fleet) == {2: [(1, 13)], 5: [(2, 5)]}
    assert move(fleet).returncode == 0
    assert photos(fleet) == {5: [(1, 13), (2, 5)]}


OBSTACLES = {
    "CREATE TABLE shard{0}.child (photo bigint REFERENCES shard{0}.photos ON DELETE CASCADE)": (
        "foreign key child_photo_fkey of shard2.child refers to it"
    ),
    "CREATE FUNCTION shard{0}.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TRIGGER audit AFTER DELETE ON shard{0}.photos EXECUTE FUNCTION shard{0}.f()": (
        "trigger audit would fire"
    ),
    "CREATE RULE keep AS ON DELETE TO shard{0}.photos DO INSTEAD NOTHING": (
        "rule keep would rewrite the statement"
    ),
    "ALTER TABLE shard{0}.photos ADD COLUMN serial integer GENERATED ALWAYS AS IDENTITY UNIQUE": (
        "column serial is unique and draws from a sequence"
    ),
    # No column owns the sequence.
    "CREATE SEQUENCE shard{0}.n;"
    "ALTER TABLE shard{0}.photos ADD COLUMN n bigint UNIQUE DEFAULT nextval('shard{0}.n') + 1": (
        "column n is unique and draws from a sequence"
    ),
    "CREATE SEQUENCE shard{0}.n; ALTER TABLE shard{0}.photos"
    " ADD COLUMN n bigint UNIQUE DEFAULT nextval('shard{0}.' || 'n')": (
        "column n is unique and draws from a sequence"
    ),
    "ALTER TABLE shard{0}.photos DROP CONSTRAINT photos_pkey": "it has no primary key",
}


@pytest.mark.parametrize("statement", OBSTACLES)
def test_what_would_do_more_than_move_a_row_is_named(fleet: Fleet, statement: str) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5)")
    fleet.execute("a", statement.format(2))
    for arguments in (["--dry-run"], []):
        done = move(fleet, *arguments)
        assert done.returncode == 1
        assert (
            f"shard 2: rows of table photos cannot be moved: {OBSTACLES[statement]}" in done.stderr
        )
    assert photos(fleet) == {2: [(1, 5)]}


def test_a_target_of_another_shape_is_named(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5)")
    fleet.execute("b", "ALTER TABLE shard5.photos ADD COLUMN more integer")
    assert "columns more differ from shard 2" in move(fleet).stderr
    fleet.execute("b", "DROP TABLE shard5.photos")
    assert "node b: shard 5: rows of table photos cannot be moved: the table is missing" in (
        move(fleet).stderr
    )
    assert fleet.query("a", "SELECT id FROM shard2.photos") == [(1,)]


def test_read_only_shards_locks_of_others_and_open_moves_are_respected(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5)")
    assert fleet.here("read-only", "on", "5", "--yes").returncode == 0
    assert "node b: shards 5 are read-only" in move(fleet).stderr
    assert fleet.here("read-only", "off", "5", "--yes").returncode == 0
    topology = fleet.topology()
    with lock.hold(topology, topology.nodes["b"], command="repack"):  # type: ignore[index]
        assert "node b is being changed by shardctl repack" in move(fleet).stderr
    fleet.execute(
        "b",
        "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired,"
        " plan, who) VALUES ('5f3a9c1e', 'reserved', 'clone', 'b', 'c', '{4}', '{shard4}',"
        " '{shard4__retired_5f3a9c1e}', '{}', 'ann')",
    )
    done = move(fleet)
    assert done.returncode == 1
    assert "move 5f3a9c1e of shards 4 (b to c, started by ann) is unfinished" in done.stderr
    assert photos(fleet) == {2: [(1, 5)]}


def test_without_a_terminal_it_wants_yes(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5)")
    assert fleet.here("rows", "move").returncode == 2
    assert photos(fleet) == {2: [(1, 5)]}


def test_rows_of_tables_without_a_named_key_go_by_their_ids(fleet: Fleet) -> None:
    fleet.migration("0003_x.sql", "CREATE TABLE plain (id bigint PRIMARY KEY DEFAULT next_id());")
    fleet.init()
    [(one,)] = fleet.query("b", "SELECT shard6.next_id()")
    fleet.execute("a", f"INSERT INTO shard0.plain VALUES ({one})")
    assert move(fleet).returncode == 0
    assert fleet.query("b", "SELECT id FROM shard6.plain") == [(one,)]
    assert told(f for f in verify(fleet, "ids", deep=True) if f.severity == "error") == []


def test_with_a_check_migrate_ends_after_the_move(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos VALUES (1, 5)")
    fleet.migration("0003_check.sql", "-- shardctl: key photos.user_id check\n")
    assert fleet.here("migrate").returncode == 3
    assert move(fleet).returncode == 0
    assert fleet.here("migrate").returncode == 0
    assert photos(fleet) == {5: [(1, 5)]}
