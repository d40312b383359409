"""`-- shardctl: key TABLE.COLUMN check`: a shard refuses rows of other shards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from psycopg import errors

from shardctl.errors import Problems
from shardctl.fanout import Silent
from shardctl.provision import fleet
from shardctl.provision.plan import Options

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

CHECKED = "-- The key is checked.\n-- shardctl: key photos.user_id check\n"


def migrate(one: Fleet) -> None:
    fleet.carry_out(fleet.plan_migrate(one.topology()), Options(), Silent())


def checks(one: Fleet, node: str, table: str = "photos") -> list[tuple[str, bool, str]]:
    """Give schema, validity and definition of the constraints of a table's shards."""
    return one.query(
        node,
        "SELECT connamespace::regnamespace::text, convalidated, pg_get_constraintdef(oid)"
        " FROM pg_constraint WHERE conname = 'shardctl_key'"
        f" AND (SELECT relname FROM pg_class WHERE oid = conrelid) = '{table}' ORDER BY 1",
    )


def test_a_row_of_another_shard_is_refused_and_its_own_rows_are_not(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (2), (10), (-6)")
    fleet_8.migration("0002_check.sql", CHECKED)
    shown = fleet_8.here("migrate", "--dry-run", "-o", "json")
    assert [c["name"] for c in json.loads(shown.stdout)["changes"]] == ["0002_check.sql"] * 2
    migrate(fleet_8)
    assert [(schema, valid) for schema, valid, _ in checks(fleet_8, "b")] == [
        (f"shard{n}", True) for n in range(4, 8)
    ]
    fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (18)")
    for wrong in (
        "INSERT INTO shard2.photos (user_id) VALUES (3)",
        "UPDATE shard2.photos SET user_id = 19 WHERE user_id = 18",
        "COPY shard2.photos (user_id) FROM PROGRAM 'echo 5'",
    ):
        with pytest.raises(errors.CheckViolation, match="shardctl_key"):
            fleet_8.execute("a", wrong)
    assert fleet_8.plan().changes() == []
    assert fleet_8.query("a", "SELECT count(*) FROM shard2.photos") == [(4,)]


def test_rows_that_are_misplaced_already_are_named_and_no_more_can_come(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (3)")
    fleet_8.migration("0002_check.sql", CHECKED)
    with pytest.raises(Problems) as refused:
        migrate(fleet_8)
    assert refused.value.exit_code == 3
    assert [error.code for error in refused.value.errors] == ["rows_misplaced", "node_unfinished"]
    with pytest.raises(errors.CheckViolation):
        fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (3)")
    again = fleet_8.here("migrate", "--dry-run", "-o", "json")
    assert [(c["action"], c["kind"], c["shards"], c["name"])
            for c in json.loads(again.stdout)["changes"]] == [
        ("validate", "check", [2], "photos")
    ]  # fmt: skip
    assert fleet_8.here("migrate").returncode == 3
    fleet_8.execute("a", "DELETE FROM shard2.photos")
    with fleet_8.connect("a", autocommit=False) as writer:
        # Validation lets a transaction go on that has written and is still open.
        writer.execute("INSERT INTO shard2.photos (user_id) VALUES (2)")
        done = fleet_8.here("migrate", "--lock-timeout", "200ms", "--attempts", "1")
        assert done.returncode == 0, done.stderr
        writer.rollback()
    assert all(valid for _, valid, _ in checks(fleet_8, "a"))
    assert fleet_8.plan().changes() == []


def test_a_line_that_cannot_be_carried_out_is_named(fleet_8: Fleet) -> None:
    for line in ("photos.owner", "nowhere.user_id", "flags.flag"):
        file = fleet_8.migration(
            "0002_x.sql", f"CREATE TABLE flags (flag boolean);\n\n-- shardctl: key {line} check\n"
        )
        with pytest.raises(Problems) as refused:
            migrate(fleet_8)
        first = next(e for e in refused.value.errors if e.code == "migration_failed")
        assert str(first).startswith(f"{file}:3: shard 0 ")
        assert fleet_8.query("a", "SELECT to_regclass('shard0.flags')") == [(None,)]


def test_verify_compares_each_check_with_its_own_shards_number(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_check.sql", CHECKED)
    migrate(fleet_8)

    def found() -> list[object]:
        done = fleet_8.here("verify", "-o", "json")
        return [
            (f["check"], f["code"], f["shards"], f["object"])
            for f in json.loads(done.stdout)["findings"]
        ]

    assert found() == []
    drop = "ALTER TABLE shard{0}.photos DROP CONSTRAINT shardctl_key"
    add = f"{drop}, ADD CONSTRAINT shardctl_key CHECK (shardctl.shard_of(user_id) = {{1}}) {{2}}"
    fleet_8.execute("a", drop.format(1))
    fleet_8.execute("a", add.format(2, 3, ""))
    fleet_8.execute("b", add.format(5, 5, "NOT VALID"))
    assert found() == [
        ("structure", "constraint_missing", [1], "photos.shardctl_key"),
        ("structure", "constraint_differs", [2], "photos.shardctl_key"),
        ("structure", "constraint_differs", [5], "photos.shardctl_key"),
    ]
