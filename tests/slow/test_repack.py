"""`repack`: what it chooses, in which order, and that tables are as they were, but smaller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking


def in_order(fleet_bloated: Repacking, shard: int, table: str, columns: str) -> bool:
    """Tell whether the rows lie on the disk in this order."""
    name = f"shard{shard}.{table}"
    lies = fleet_bloated.query(shard, f"SELECT {columns} FROM {name} ORDER BY ctid")
    return lies == fleet_bloated.query(shard, f"SELECT {columns} FROM {name} ORDER BY {columns}")


def test_it_gives_space_back_and_changes_no_row(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(2)
    before, rows = fleet_bloated.size(2), fleet_bloated.rows(2)
    done = fleet_bloated.repack("2", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["tables"]
    assert fleet_bloated.rows(2) == rows
    assert fleet_bloated.size(2) < before / 3
    assert (told["state"], told["size_bytes"], told["after_bytes"]) == (
        "repacked", before, fleet_bloated.size(2),
    )  # fmt: skip
    # The estimate was made before; it leaves out TOAST and the other forks.
    assert abs(before - fleet_bloated.size(2) - told["bloat_bytes"]) < 0.1 * before
    assert fleet_bloated.leftovers() == []
    sizes = f"{before} -> {fleet_bloated.size(2)} bytes"
    assert fleet_bloated.events() == [
        f"repacked file {fleet_bloated.file(2)}: shard2.photos, {sizes}",
        "done: 1 of 1 tables",
    ]


def test_rows_lie_in_the_order_of_the_primary_key(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(1)
    assert not in_order(fleet_bloated, 1, "photos", "id")
    assert fleet_bloated.repack("1", "--yes").returncode == 0
    assert in_order(fleet_bloated, 1, "photos", "id")


def test_rows_lie_in_the_order_of_the_index_that_the_table_is_clustered_by(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(1)
    fleet_bloated.execute(1, "ALTER TABLE shard1.photos CLUSTER ON photos_of_user")
    try:
        assert [one.table.index for one in fleet_bloated.plan(1).chosen] == ["photos_of_user"]
        assert fleet_bloated.repack("1", "--yes").returncode == 0
    finally:
        fleet_bloated.execute(1, "ALTER TABLE shard1.photos SET WITHOUT CLUSTER")
    assert in_order(fleet_bloated, 1, "photos", "user_id, id")


def test_a_unique_index_on_columns_that_are_not_null_serves_as_the_order(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(1, "likes")
    assert fleet_bloated.repack("1", "--yes").returncode == 0
    assert in_order(fleet_bloated, 1, "likes", "user_id DESC")


def test_the_worst_comes_first(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(1, rows=24_000)
    fleet_bloated.bloat(2, rows=16_000)
    names = ["shard1.photos", "shard2.photos", "shard0.photos"]
    assert [one.name for one in fleet_bloated.plan().chosen] == names
    done = fleet_bloated.repack("--yes")
    assert done.returncode == 0
    assert [text.split()[3].rstrip(",") for text in fleet_bloated.events()[:3]] == names
    assert "photos   3 " in done.stdout
    assert "3 tables repacked" in done.stderr


def test_little_bloat_is_left_out_and_counted(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    assert fleet_bloated.verdicts(0)["shard0.photos"] == "repack"
    assert fleet_bloated.verdicts(0, min_bloat=90)["shard0.photos"] == "little"
    done = fleet_bloated.repack("--yes", "--min-bloat", "90")
    assert done.returncode == 0
    assert done.stdout == "nothing to repack\n"
    assert "too little estimated bloat" in done.stderr


def test_a_full_table_has_next_to_no_bloat(fleet_bloated: Repacking) -> None:
    rows = "SELECT n, n % 20, md5(n::text) FROM generate_series(1, 20000) n"
    fleet_bloated.execute(0, f"INSERT INTO shard0.stories {rows}")
    fleet_bloated.execute(0, "VACUUM FULL ANALYZE shard0.stories")
    found = {one.name: one.table for one in fleet_bloated.plan(0).candidates}
    for part in ("shard0.stories_1", "shard0.stories_2"):
        table = found[part]
        assert table.size_bytes > 700_000
        assert table.bloat_bytes is not None
        assert table.bloat_bytes < 0.1 * table.size_bytes


def test_partitions_are_repacked_each_for_itself(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(3, "stories")
    rows = fleet_bloated.rows(3, "stories")
    chosen = {one.name for one in fleet_bloated.plan(3).chosen}
    assert chosen == {"shard3.stories_1", "shard3.stories_2"}
    assert fleet_bloated.repack("3", "--yes").returncode == 0
    assert fleet_bloated.rows(3, "stories") == rows


def test_a_table_that_nobody_analyzed_is_taken_only_where_bloat_does_not_matter(
    fleet_bloated: Repacking,
) -> None:
    create = "CREATE TABLE shard0.raw AS SELECT n AS id FROM generate_series(1, 5000) n"
    fleet_bloated.execute(0, create)
    try:
        fleet_bloated.execute(0, "ALTER TABLE shard0.raw ADD PRIMARY KEY (id)")
        fleet_bloated.execute(0, "UPDATE pg_class SET reltuples = -1 WHERE relname = 'raw'")
        assert fleet_bloated.verdicts(0)["shard0.raw"] == "unknown"
        assert fleet_bloated.verdicts(0, min_bloat=0)["shard0.raw"] == "repack"
    finally:
        fleet_bloated.execute(0, "DROP TABLE shard0.raw")


def test_what_cannot_be_repacked_is_named_with_the_reason_and_makes_the_exit_code_1(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(0, "tags")
    fleet_bloated.bloat(0, "seen")
    files = [fleet_bloated.file(0, table) for table in ("tags", "seen")]
    assert fleet_bloated.repack("0", "--dry-run").returncode == 0
    done = fleet_bloated.repack("0", "--yes")
    assert done.returncode == 1
    assert "2 tables cannot be repacked: " in done.stderr
    assert "node a: shard0.tags: it needs a primary key" in done.stderr
    assert "node a: shard0.seen: unlogged tables cannot be repacked" in done.stderr
    assert "1 table repacked" in done.stderr
    assert [fleet_bloated.file(0, table) for table in ("tags", "seen")] == files
    assert fleet_bloated.verdicts(0)["shard0.photos"] == "recent"
    again = fleet_bloated.repack("0", "--yes", "-o", "json")
    assert again.returncode == 1
    assert [one["state"] for one in json.loads(again.stdout)["tables"]] == ["refused", "refused"]


def test_a_table_is_not_repacked_again_before_recent_has_passed_or_it_is_written_anew(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    assert fleet_bloated.repack("0", "--yes").returncode == 0
    assert fleet_bloated.verdicts(0, min_bloat=0)["shard0.photos"] == "recent"
    assert fleet_bloated.verdicts(0, min_bloat=0, recent="0s")["shard0.photos"] == "repack"
    assert fleet_bloated.verdicts(1, min_bloat=0)["shard1.photos"] == "repack"
    fleet_bloated.execute(0, "VACUUM FULL shard0.photos")
    assert fleet_bloated.verdicts(0, min_bloat=0)["shard0.photos"] == "repack"


def test_a_table_that_somebody_wrote_anew_since_the_plan_is_left_alone(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(1)
    plan = fleet_bloated.plan(0, 1)
    fleet_bloated.execute(0, "VACUUM FULL shard0.photos")
    file = fleet_bloated.file(0)
    result = fleet_bloated.carry_out(plan)
    assert result.error is not None
    assert result.error.exit_code == 3
    assert "shard0.photos: another session rewrote it" in result.error.message
    assert [one.candidate.name for one in result.repacked] == ["shard1.photos"]
    assert fleet_bloated.file(0) == file


def test_foreign_keys_hold_afterwards(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.execute(0, "INSERT INTO shard0.likes SELECT id, id, 'x' FROM shard0.photos")
    assert fleet_bloated.repack("0", "--yes", "--min-bloat", "0").returncode == 1  # tags has no key
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        fleet_bloated.execute(0, "INSERT INTO shard0.likes VALUES (3, 0, 'x')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        fleet_bloated.execute(0, "DELETE FROM shard0.photos")


def test_what_is_written_meanwhile_is_there_afterwards(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    plan = fleet_bloated.plan(0)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.at_work_in_thread(plan) as results:
            fleet_bloated.copied()
            fleet_bloated.execute(0, "INSERT INTO shard0.photos VALUES (1000001, 1, 'new')")
            fleet_bloated.execute(0, "UPDATE shard0.photos SET about = 'changed' WHERE id = 4")
            fleet_bloated.execute(0, "DELETE FROM shard0.photos WHERE id = 8")
            rows = fleet_bloated.rows(0)
            old.rollback()
    assert results[0].error is None
    assert fleet_bloated.rows(0) == rows
    assert fleet_bloated.file(0) != plan.chosen[0].table.file


def test_no_more_tables_than_jobs_are_at_work_at_once_on_a_node(fleet_bloated: Repacking) -> None:
    for shard in (0, 1, 2, 3):
        fleet_bloated.bloat(shard, rows=2000)
    plan = fleet_bloated.plan(jobs=2)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.at_work_in_thread(plan) as results:
            wait_for(lambda: len(fleet_bloated.notices) == 2)
            assert len(fleet_bloated.programs()) == 2
            old.rollback()
    assert results[0].error is None
    assert len(results[0].repacked) == 4


def test_a_dry_run_changes_nothing_and_tells_all_in_json(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    file = fleet_bloated.file(0)
    done = fleet_bloated.repack("--dry-run", "-o", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["format"] == 1
    (table,) = found["tables"]
    assert {key: table[key] for key in ("node", "shard", "schema", "table", "index")} == {
        "node": "a", "shard": 0, "schema": "shard0", "table": "photos", "index": "photos_pkey",
    }  # fmt: skip
    assert (table["state"], table["reason"], table["after_bytes"]) == ("planned", None, None)
    assert sum(found["left_out"].values()) == 8 * 6 - 1
    assert found["reclaimed_bytes"] == 0
    assert fleet_bloated.file(0) == file
    assert fleet_bloated.events() == []


def test_without_a_terminal_it_asks_for_yes_and_repacks_nothing(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    file = fleet_bloated.file(0)
    done = fleet_bloated.fleet.here("repack", "-o", "json")
    assert done.returncode == 2
    assert "--yes" in json.loads(done.stdout)["errors"][0]["hint"]
    assert fleet_bloated.file(0) == file


def test_shards_and_times_that_cannot_be_are_bad_usage(fleet_bloated: Repacking) -> None:
    assert fleet_bloated.repack("8").returncode == 2
    assert fleet_bloated.repack("x").returncode == 2
    assert fleet_bloated.repack("0", "--recent", "soon").returncode == 2
