"""`repack`: what it chooses, in which order, and that tables are as they were, but smaller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking


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
    assert "shard0.tags" in done.stderr
    assert "shard0.seen" in done.stderr
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
