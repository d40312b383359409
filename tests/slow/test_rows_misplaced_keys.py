"""`rows`: which key judges a table's rows, after renames and where tables have children."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_rows_misplaced import run

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

TABLES = """
-- shardctl: key events.user_id
-- shardctl: key base.user_id
CREATE TABLE events (
    id bigint DEFAULT next_id(), user_id bigint NOT NULL, at date NOT NULL, PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE TABLE events_2026 PARTITION OF events
    FOR VALUES FROM ('2026-01-01') TO ('2027-01-01') PARTITION BY RANGE (at);
CREATE TABLE events_may PARTITION OF events_2026 FOR VALUES FROM ('2026-05-01') TO ('2026-06-01');
CREATE TABLE base (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL);
CREATE TABLE child (extra text, PRIMARY KEY (id)) INHERITS (base);
"""


@pytest.fixture
def photos(fleet_8: Fleet) -> Fleet:
    """Give a fleet in which a row is in the shard of its key, 5, and has an id of shard 2."""
    fleet_8.migration("0002_key.sql", "-- shardctl: key photos.user_id\n")
    fleet_8.init()
    [(made,)] = fleet_8.query("a", "SELECT shard2.next_id()")
    fleet_8.execute("b", f"INSERT INTO shard5.photos (id, user_id) VALUES ({made}, 5)")
    return fleet_8


@pytest.fixture
def children(fleet_8: Fleet) -> Fleet:
    """Give a fleet with partitions and an inheritance child, and a misplaced row in each."""
    fleet_8.migration("0002_tables.sql", TABLES)
    fleet_8.init()
    fleet_8.execute("a", "SET search_path = shard2; INSERT INTO child (user_id) VALUES (5);"
                    "INSERT INTO events (user_id, at) VALUES (5, '2026-05-05')")  # fmt: skip
    return fleet_8


def test_a_key_whose_column_was_renamed_is_not_replaced_by_the_id(photos: Fleet) -> None:
    photos.migration("0003_x.sql", "ALTER TABLE photos RENAME COLUMN user_id TO owner_id;")
    assert photos.here("migrate", "--yes").returncode == 0
    done = photos.here("rows", "misplaced")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "table photos of shards 4-7 has no column user_id, which is its key" in done.stderr
    photos.migration("0004_x.sql", "-- shardctl: key photos.owner_id\n")
    assert photos.here("rows", "misplaced").returncode == 1, "the key's file has not run"
    assert photos.here("migrate", "--yes").returncode == 0
    assert photos.here("rows", "misplaced").returncode == 0


def test_partitions_and_children_are_judged_by_their_parents_key(children: Fleet) -> None:
    def listed(*arguments: str) -> list[tuple[str, str, int]]:
        done = children.here("rows", "misplaced", *arguments, "-o", "json")
        assert done.returncode == 1, done.stderr
        return [
            (one["table"], one["by"], one["belongs_to"])
            for one in json.loads(done.stdout)["misplaced"]
        ]

    both = [("child", "key", 5), ("events_may", "key", 5)]
    assert listed() == both
    for parent, found in (("base", both[:1]), ("events", both[1:]), ("events_2026", both[1:])):
        assert listed("2", "--table", parent) == found
    run(children, "--table", "events")
    run(children, "--table", "base")
    assert "no row is in a wrong shard" in children.here("rows", "misplaced").stdout
    assert children.query("b", "SELECT user_id, tableoid::regclass::text FROM shard5.events") == [
        (5, "shard5.events_may")
    ]
    assert children.query("b", "SELECT user_id FROM ONLY shard5.child") == [(5,)]
