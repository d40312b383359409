"""`repack`: what it chooses, in which order, and that tables are as they were, but smaller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.repacking import Repacking


def in_order(repacking: Repacking, shard: int, table: str, columns: str) -> bool:
    """Tell whether the rows lie on the disk in this order."""
    name = f"shard{shard}.{table}"
    lies = repacking.query(shard, f"SELECT {columns} FROM {name} ORDER BY ctid")
    return lies == repacking.query(shard, f"SELECT {columns} FROM {name} ORDER BY {columns}")


def test_it_gives_space_back_and_changes_no_row(repacking: Repacking) -> None:
    repacking.bloat(2)
    before, rows = repacking.size(2), repacking.rows(2)
    done = repacking.repack("2", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["tables"]
    assert repacking.rows(2) == rows
    assert repacking.size(2) < before / 3
    assert (told["state"], told["size_bytes"], told["after_bytes"]) == (
        "repacked", before, repacking.size(2),
    )  # fmt: skip
    # The estimate was made before; it leaves out TOAST and the other forks.
    assert abs(before - repacking.size(2) - told["bloat_bytes"]) < 0.1 * before
    assert repacking.leftovers() == []
    assert repacking.events() == [
        f"repacked file {repacking.file(2)}: shard2.photos, {before} -> {repacking.size(2)} bytes",
        "done: 1 of 1 tables",
    ]


def test_rows_lie_in_the_order_of_the_primary_key(repacking: Repacking) -> None:
    repacking.bloat(1)
    assert not in_order(repacking, 1, "photos", "id")
    assert repacking.repack("1", "--yes").returncode == 0
    assert in_order(repacking, 1, "photos", "id")


def test_rows_lie_in_the_order_of_the_index_that_the_table_is_clustered_by(
    repacking: Repacking,
) -> None:
    repacking.bloat(1)
    repacking.execute(1, "ALTER TABLE shard1.photos CLUSTER ON photos_of_user")
    try:
        assert [one.table.index for one in repacking.plan(1).chosen] == ["photos_of_user"]
        assert repacking.repack("1", "--yes").returncode == 0
    finally:
        repacking.execute(1, "ALTER TABLE shard1.photos SET WITHOUT CLUSTER")
    assert in_order(repacking, 1, "photos", "user_id, id")


def test_a_unique_index_on_columns_that_are_not_null_serves_as_the_order(
    repacking: Repacking,
) -> None:
    repacking.bloat(1, "likes")
    assert repacking.repack("1", "--yes").returncode == 0
    assert in_order(repacking, 1, "likes", "user_id DESC")


def test_the_worst_comes_first(repacking: Repacking) -> None:
    repacking.bloat(0)
    repacking.bloat(1, rows=24_000)
    repacking.bloat(2, rows=16_000)
    names = ["shard1.photos", "shard2.photos", "shard0.photos"]
    assert [one.name for one in repacking.plan().chosen] == names
    done = repacking.repack("--yes")
    assert done.returncode == 0
    assert [text.split()[3].rstrip(",") for text in repacking.events()[:3]] == names
    assert "photos   3 " in done.stdout
    assert "3 tables repacked" in done.stderr


def test_little_bloat_is_left_out_and_counted(repacking: Repacking) -> None:
    repacking.bloat(0)
    assert repacking.verdicts(0)["shard0.photos"] == "repack"
    assert repacking.verdicts(0, min_bloat=90)["shard0.photos"] == "little"
    done = repacking.repack("--yes", "--min-bloat", "90")
    assert done.returncode == 0
    assert done.stdout == "nothing to repack\n"
    assert "too little estimated bloat" in done.stderr


def test_a_full_table_has_next_to_no_bloat(repacking: Repacking) -> None:
    rows = "SELECT n, n % 20, md5(n::text) FROM generate_series(1, 20000) n"
    repacking.execute(0, f"INSERT INTO shard0.stories {rows}")
    repacking.execute(0, "VACUUM FULL ANALYZE shard0.stories")
    found = {one.name: one.table for one in repacking.plan(0).candidates}
    for part in ("shard0.stories_1", "shard0.stories_2"):
        table = found[part]
        assert table.size_bytes > 700_000
        assert table.bloat_bytes is not None
        assert table.bloat_bytes < 0.1 * table.size_bytes


def test_partitions_are_repacked_each_for_itself(repacking: Repacking) -> None:
    repacking.bloat(3, "stories")
    rows = repacking.rows(3, "stories")
    chosen = {one.name for one in repacking.plan(3).chosen}
    assert chosen == {"shard3.stories_1", "shard3.stories_2"}
    assert repacking.repack("3", "--yes").returncode == 0
    assert repacking.rows(3, "stories") == rows


def test_a_table_that_nobody_analyzed_is_taken_only_where_bloat_does_not_matter(
    repacking: Repacking,
) -> None:
    create = "CREATE TABLE shard0.raw AS SELECT n AS id FROM generate_series(1, 5000) n"
    repacking.execute(0, create)
    try:
        repacking.execute(0, "ALTER TABLE shard0.raw ADD PRIMARY KEY (id)")
        repacking.execute(0, "UPDATE pg_class SET reltuples = -1 WHERE relname = 'raw'")
        assert repacking.verdicts(0)["shard0.raw"] == "unknown"
        assert repacking.verdicts(0, min_bloat=0)["shard0.raw"] == "repack"
    finally:
        repacking.execute(0, "DROP TABLE shard0.raw")


def test_what_cannot_be_repacked_is_named_with_the_reason_and_makes_the_exit_code_1(
    repacking: Repacking,
) -> None:
    repacking.bloat(0)
    repacking.bloat(0, "tags")
    repacking.bloat(0, "seen")
    files = [repacking.file(0, table) for table in ("tags", "seen")]
    assert repacking.repack("0", "--dry-run").returncode == 0
    done = repacking.repack("0", "--yes")
    assert done.returncode == 1
    assert "2 tables cannot be repacked: " in done.stderr
    assert "node a: shard0.tags: it has neither a primary key" in done.stderr
    assert "node a: shard0.seen: it is unlogged" in done.stderr
    assert "1 table repacked" in done.stderr
    assert [repacking.file(0, table) for table in ("tags", "seen")] == files
    assert repacking.verdicts(0)["shard0.photos"] == "recent"
    again = repacking.repack("0", "--yes", "-o", "json")
    assert again.returncode == 1
    assert [one["state"] for one in json.loads(again.stdout)["tables"]] == ["refused", "refused"]


def test_a_table_is_not_repacked_again_before_recent_has_passed_or_it_is_written_anew(
    repacking: Repacking,
) -> None:
    repacking.bloat(0)
    assert repacking.repack("0", "--yes").returncode == 0
    assert repacking.verdicts(0, min_bloat=0)["shard0.photos"] == "recent"
    assert repacking.verdicts(0, min_bloat=0, recent="0s")["shard0.photos"] == "repack"
    assert repacking.verdicts(1, min_bloat=0)["shard1.photos"] == "repack"
    repacking.execute(0, "VACUUM FULL shard0.photos")
    assert repacking.verdicts(0, min_bloat=0)["shard0.photos"] == "repack"


def test_a_table_that_somebody_wrote_anew_since_the_plan_is_left_alone(
    repacking: Repacking,
) -> None:
    repacking.bloat(0)
    repacking.bloat(1)
    plan = repacking.plan(0, 1)
    repacking.execute(0, "VACUUM FULL shard0.photos")
    file = repacking.file(0)
    result = repacking.carry_out(plan)
    assert result.error is not None
    assert result.error.exit_code == 3
    assert "shard0.photos: it was written anew by somebody else" in result.error.message
    assert [one.candidate.name for one in result.repacked] == ["shard1.photos"]
    assert repacking.file(0) == file


def test_foreign_keys_hold_afterwards(repacking: Repacking) -> None:
    repacking.bloat(0)
    repacking.execute(0, "INSERT INTO shard0.likes SELECT id, id, 'x' FROM shard0.photos")
    assert repacking.repack("0", "--yes", "--min-bloat", "0").returncode == 1  # tags has no key
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        repacking.execute(0, "INSERT INTO shard0.likes VALUES (3, 0, 'x')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        repacking.execute(0, "DELETE FROM shard0.photos")


def test_what_is_written_meanwhile_is_there_afterwards(repacking: Repacking) -> None:
    repacking.bloat(0)
    plan = repacking.plan(0)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        with repacking.at_work_in_thread(plan) as results:
            repacking.copied()
            repacking.execute(0, "INSERT INTO shard0.photos VALUES (1000001, 1, 'new')")
            repacking.execute(0, "UPDATE shard0.photos SET about = 'changed' WHERE id = 4")
            repacking.execute(0, "DELETE FROM shard0.photos WHERE id = 8")
            rows = repacking.rows(0)
            old.rollback()
    assert results[0].error is None
    assert repacking.rows(0) == rows
    assert repacking.file(0) != plan.chosen[0].table.file


def test_no_more_tables_than_jobs_are_at_work_at_once_on_a_node(repacking: Repacking) -> None:
    for shard in (0, 1, 2, 3):
        repacking.bloat(shard, rows=2000)
    plan = repacking.plan(jobs=2)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        with repacking.at_work_in_thread(plan) as results:
            wait_for(lambda: len(repacking.notices) == 2)
            assert len(repacking.programs()) == 2
            old.rollback()
    assert results[0].error is None
    assert len(results[0].repacked) == 4


def test_a_dry_run_changes_nothing_and_tells_all_in_json(repacking: Repacking) -> None:
    repacking.bloat(0)
    file = repacking.file(0)
    done = repacking.repack("--dry-run", "-o", "json")
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
    assert repacking.file(0) == file
    assert repacking.events() == []


def test_without_a_terminal_it_asks_for_yes_and_repacks_nothing(repacking: Repacking) -> None:
    repacking.bloat(0)
    file = repacking.file(0)
    done = repacking.fleet.here("repack", "-o", "json")
    assert done.returncode == 2
    assert "--yes" in json.loads(done.stdout)["errors"][0]["hint"]
    assert repacking.file(0) == file


def test_shards_and_times_that_cannot_be_are_bad_usage(repacking: Repacking) -> None:
    assert repacking.repack("8").returncode == 2
    assert repacking.repack("x").returncode == 2
    assert repacking.repack("0", "--recent", "soon").returncode == 2
