"""`shardctl read-only` as a user runs it, and what status, verify and migrate make of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.fleets.read_only import (
    OF_A_SHARD,
    switch_off,
    switch_on,
    triggers,
)
from tests.fixtures.fleets.verify import verify
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


# The command


def test_on_and_off_tell_the_plan_and_what_was_done(fleet_tables: Fleet) -> None:
    done = fleet_tables.here("read-only", "on", "2-5", "--yes")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "on", "2-3", "8", "none"] in rows
    assert ["b", "on", "4-5", "8", "none"] in rows
    done = fleet_tables.here("read-only", "off", "--node", "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert ["a", "off", "2-3", "8", "0-1"] in [line.split() for line in done.stdout.splitlines()]
    assert triggers(fleet_tables, "a") == {}
    assert triggers(fleet_tables, "b") == {"shard4": OF_A_SHARD, "shard5": OF_A_SHARD}


# What is refused


def test_a_login_that_does_not_own_the_tables_is_refused(fleet_tables: Fleet) -> None:
    fleet_tables.execute(
        "a",
        f"ALTER ROLE {fleet_tables.role} CREATEDB; GRANT ALL ON ALL TABLES IN SCHEMA shardctl"
        f" TO {fleet_tables.role}",
    )
    done = fleet_tables.here("read-only", "on", "2", "--yes")
    assert done.returncode == 0, done.stderr
    text = fleet_tables.write().read_text()
    fleet_tables.file.write_text(
        text.replace("database:\n", f"database:\n  user: {fleet_tables.role}\n")
    )
    done = fleet_tables.here_as_written("read-only", "off", "2", "--yes")
    assert done.returncode == 1
    assert "shard2.days" in done.stderr


# status and verify


def test_status_tells_which_since_when_and_by_whom(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 1, 2, 5)
    done = fleet_tables.here("status", "--sample", "0")
    who = fleet_tables.query("a", "SELECT DISTINCT who FROM shardctl.event")[0][0]
    assert who in done.stdout
    done = fleet_tables.here("status", "--sample", "0", "-o", "json")
    a, b = json.loads(done.stdout)["nodes"]
    assert [(g["shards"], g["complete"], g["by"]) for g in a["read_only"]] == [([1, 2], True, who)]
    assert [g["shards"] for g in b["read_only"]] == [[5]]


HALF = {
    "a table made since": "CREATE TABLE {}.later (n integer)",
    "a trigger disabled": "ALTER TABLE {}.photos DISABLE TRIGGER shardctl_read_only",
    "a trigger dropped": "DROP TRIGGER shardctl_read_only ON {}.photos",
    "a trigger for less": (
        "CREATE OR REPLACE TRIGGER shardctl_read_only BEFORE INSERT ON {}.photos"
        " FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write();"
        "ALTER TABLE {}.photos ENABLE ALWAYS TRIGGER shardctl_read_only"
    ),
}


def test_verify_finds_shards_of_which_not_all_refuses(fleet_tables: Fleet) -> None:
    shards = range(len(HALF))
    switch_on(fleet_tables, *shards)
    before = {node: triggers(fleet_tables, node) for node in "ab"}
    for shard, statement in zip(shards, HALF.values(), strict=True):
        fleet_tables.execute("a", statement.format(*2 * [f"shard{shard}"]))
    found = verify(fleet_tables, "leftovers")
    assert sorted(shard for one in found for shard in one.shards) == list(shards)
    for one in found:
        assert (one.code, one.severity) == ("read_only_in_part", "error")
    switch_on(fleet_tables, *shards)
    assert {one.code for one in verify(fleet_tables, "leftovers")} == {"read_only"}
    for node, counts in before.items():
        after = triggers(fleet_tables, node)
        assert all(after[schema] >= count for schema, count in counts.items())
    switch_off(fleet_tables, *shards)
    assert triggers(fleet_tables, "a") == triggers(fleet_tables, "b") == {}


# init and migrate


def test_a_migration_is_refused_while_a_shard_is_read_only(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 2)
    assert fleet_tables.plan().changes() == []
    fleet_tables.migration("0002_more.sql", "CREATE TABLE more (n integer)")
    for command in ("migrate", "init"):
        done = fleet_tables.here(command)
        assert done.returncode == 1
        assert "0002_more.sql" in done.stderr
    with raises_code("shards_read_only"):
        fleet_tables.plan()
    switch_off(fleet_tables, 2)
    assert fleet_tables.here("migrate").returncode == 0
