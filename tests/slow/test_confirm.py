"""Confirm: what was moved is compared row for row, and what becomes of a move that cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.moves import confirm
from shardctl.moves.confirm import CopiesDiffer
from shardctl.moves.plan import CLONE
from shardctl.moves.service import METHODS
from shardctl.moves.step import drive

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

SHAPES = """
CREATE TABLE empty (id bigint, t text);
CREATE TABLE nothing ();
INSERT INTO nothing DEFAULT VALUES;
CREATE TABLE t (t integer, other text);
INSERT INTO t VALUES (1, 'a'), (2, NULL), (NULL, 'b');
CREATE TABLE dropped (a integer, b text, c text);
INSERT INTO dropped VALUES (1, 'gone', 'stays');
ALTER TABLE dropped DROP COLUMN b;
ALTER TABLE dropped ADD COLUMN d integer DEFAULT 7;
CREATE TABLE parted (n integer, t text) PARTITION BY RANGE (n);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20) PARTITION BY LIST (n);
CREATE TABLE parted_2a PARTITION OF parted_2 DEFAULT;
INSERT INTO parted SELECT n, 'x' FROM generate_series(0, 19) n;
CREATE TABLE heir (more text) INHERITS (t);
INSERT INTO heir VALUES (9, 'z', 'heir');
CREATE TABLE twins (n integer);
INSERT INTO twins SELECT 1 FROM generate_series(1, 5);
CREATE TABLE hidden (n integer);
INSERT INTO hidden VALUES (1);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY
"""
TABLES, ROWS = 11, 34
"""Of SHAPES in shard 2, and the migrations' in shards 2 and 3."""


def test_rows_of_all_shapes_are_compared_and_every_change_of_one_is_found(
    fleet_own: Lab,
) -> None:
    fleet_own.ask("a", f"SET search_path = shard2; {SHAPES}")
    world = fleet_own.up_to("confirm", [2, 3], "c")
    retired = sql.Identifier(world.plan.retired[0])
    same = confirm.compare(world)
    assert same is not None
    assert (same.tables, same.rows) == (TABLES, ROWS)
    # What applications write to the target afterwards is not in its snapshot, nor are columns.
    fleet_own.ask("c", "INSERT INTO shard2.photos (user_id) VALUES (1); DELETE FROM shard2.twins")
    fleet_own.ask("c", "ALTER TABLE shard2.t ADD COLUMN later integer DEFAULT 1")
    assert confirm.compare(world) == same
    with fleet_own.connect("a") as session:
        session.execute(sql.SQL("SET search_path = {}").format(retired))
        for table, change in CHANGES.items():
            session.execute("BEGIN")
            session.execute(change.encode())
            session.execute("COMMIT")
            with pytest.raises(CopiesDiffer) as caught:
                confirm.compare(world)
            assert len(caught.value.tables) == 1, caught.value.tables
            assert caught.value.tables[0].startswith(f"shard2.{table}: ")
            session.execute(UNDO[table].encode())
            assert confirm.compare(world) == same, f"{table} is not as it was"
        session.execute("DROP TABLE empty")
        with pytest.raises(CopiesDiffer, match=r"shard2\.empty"):
            confirm.compare(world)
    world.close()


CHANGES = {
    "twins": "DELETE FROM twins WHERE ctid = (SELECT min(ctid) FROM twins)",
    "t": "UPDATE ONLY t SET other = '' WHERE other IS NULL",
    "heir": "UPDATE heir SET more = 'Heir'",
    "parted_2a": "UPDATE parted SET t = 'y' WHERE n = 15",
    "nothing": "INSERT INTO nothing DEFAULT VALUES",
}
"""A change of one table, made by hand in the retired copy."""
UNDO = {
    "twins": "INSERT INTO twins VALUES (1)",
    "t": "UPDATE ONLY t SET other = NULL WHERE other = ''",
    "heir": "UPDATE heir SET more = 'heir'",
    "parted_2a": "UPDATE parted SET t = 'x' WHERE n = 15",
    "nothing": "DELETE FROM nothing WHERE ctid = (SELECT max(ctid) FROM nothing)",
}


def test_copies_that_differ_are_kept_for_good_and_the_move_can_be_closed(
    fleet_own: Lab,
) -> None:
    world = fleet_own.up_to("confirm", [2, 3], "c")
    fleet_own.ask("a", f"UPDATE {world.plan.retired[1]}.photos SET user_id = 2")
    with pytest.raises(CopiesDiffer) as caught:
        drive(world, METHODS[CLONE])
    world.close()
    assert caught.value.exit_code == 3
    assert "shard3.photos" in caught.value.message
    (listed,) = json.loads(fleet_own.here("moves", "list", "-o", "json").stdout)["moves"]
    assert (listed["state"], listed["can"]) == ("unfinished", ["resume"])
    # The snapshot is gone, so nobody can compare again; that must not become a lesser proof.
    done = fleet_own.here("moves", "resume")
    assert (done.returncode, "the copies differ" in done.stderr) == (0, True), done.stderr
    for node in "ac":
        journal = fleet_own.ask(node, "SELECT state, proof FROM shardctl.move")
        assert journal == [("unconfirmed", "differs")]
    left = fleet_own.here("prune", "--now", "--yes", "--accept-unconfirmed")
    assert left.returncode == 0
    assert left.stdout.count("compare it by hand") == 4
    assert fleet_own.ask("a", f"SELECT user_id FROM {world.plan.retired[1]}.photos") == [(2,)]
