"""The down part of a migration: where it runs, in which order, and what stops it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.fleets.fleet import Fleet

LIKES = "0002_likes.sql"
UP = "CREATE TABLE likes (id bigint);\n"
DOWN = "-- shardctl: down\n"


def having(one: Fleet) -> list[int]:
    """List the shards that have the table."""
    return [
        shard
        for node, shards in (("a", range(4)), ("b", range(4, 8)))
        for shard in shards
        if one.query(node, f"SELECT to_regclass('shard{shard}.likes') IS NOT NULL") == [(True,)]
    ]


def well(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


def test_it_undoes_exactly_the_shards_that_have_it(fleet_8: Fleet) -> None:
    fleet_8.migration(LIKES, f"{UP}{DOWN}DROP TABLE likes;")
    well(fleet_8.here("migrate", "--shards", "1,6"))
    shown = fleet_8.here("migrate", "rollback", "2", "--dry-run", "-o", "json")
    changes = json.loads(shown.stdout)["changes"]
    assert [(c["action"], c["node"], c["shards"]) for c in changes] == [
        ("undo", "a", [1]),
        ("undo", "b", [6]),
    ]
    assert having(fleet_8) == [1, 6]
    well(fleet_8.here("migrate", "rollback", LIKES))
    assert having(fleet_8) == []
    for node in "ab":
        ran = "SELECT count(*) FROM shardctl.migration WHERE file ~ '0002'"
        assert fleet_8.query(node, ran) == [(0,)]
    again = fleet_8.here("migrate", "rollback", "0002")
    assert "is in no shard" in again.stdout
    assert again.returncode == 0


def test_the_last_wave_is_undone_first(fleet_8: Fleet) -> None:
    fleet_8.migration(
        LIKES,
        f"{UP}{DOWN}DROP TABLE likes; INSERT INTO public.log (shard) SELECT current_schema();",
    )
    well(fleet_8.here("migrate", "--shards", "3", "--soak", "0s"))
    fleet_8.execute("a", "CREATE TABLE public.log (n serial, shard text)")
    fleet_8.execute("b", "CREATE TABLE public.log (n serial, shard text)")
    well(fleet_8.here("migrate", "rollback", "0002"))
    assert having(fleet_8) == []
    order = [shard for (shard,) in fleet_8.query("a", "SELECT shard FROM public.log ORDER BY n")]
    assert order[-1] == "shard3"
    assert sorted(order) == ["shard0", "shard1", "shard2", "shard3"]


def test_a_down_part_that_fails_names_its_line_and_keeps_earlier_waves(fleet_8: Fleet) -> None:
    file = fleet_8.migration(LIKES, f"{UP}{DOWN}\nDROP TABLE likes;")
    well(fleet_8.here("migrate", "--shards", "3", "--soak", "0s"))
    fleet_8.execute("b", "DROP TABLE shard5.likes")
    done = fleet_8.here("migrate", "rollback", "0002")
    assert done.returncode == 3
    assert f'{file}:4: shard 5 on node b: table "likes" does not exist' in done.stderr
    assert having(fleet_8) == [3, 6, 7]  # 6 and 7 are in one batch with 5, 3 is in the first wave
    fleet_8.execute("b", "CREATE TABLE shard5.likes ()")
    well(fleet_8.here("migrate", "rollback", "0002"))
    assert having(fleet_8) == []


def test_a_down_part_may_be_added_when_the_file_has_run(fleet_8: Fleet) -> None:
    fleet_8.migration(LIKES, UP)
    well(fleet_8.here("migrate"))
    done = fleet_8.here("migrate", "rollback", "0002")
    assert done.returncode == 1
    assert "has no down part" in done.stderr
    fleet_8.migration(LIKES, f"{UP}{DOWN}DROP TABLE likes;")
    well(fleet_8.here("migrate", "rollback", "0002"))
    assert having(fleet_8) == []


def test_a_later_migration_is_undone_first(fleet_8: Fleet) -> None:
    fleet_8.migration(LIKES, f"{UP}{DOWN}DROP TABLE likes;")
    fleet_8.migration(
        "0003_more.sql", f"ALTER TABLE likes ADD m int;\n{DOWN}ALTER TABLE likes DROP m;"
    )
    well(fleet_8.here("migrate"))
    done = fleet_8.here("migrate", "rollback", "0002")
    assert done.returncode == 1
    assert "0003_more.sql ran after it" in done.stderr
    well(fleet_8.here("migrate", "rollback", "3"))
    well(fleet_8.here("migrate", "rollback", "2"))
    assert having(fleet_8) == []


def test_a_file_that_is_not_what_ran_is_not_undone(fleet_8: Fleet) -> None:
    fleet_8.migration(LIKES, f"{UP}{DOWN}DROP TABLE likes;")
    well(fleet_8.here("migrate"))
    fleet_8.migration(LIKES, f"CREATE TABLE liked ();\n{DOWN}DROP TABLE likes;")
    done = fleet_8.here("migrate", "rollback", "0002")
    assert done.returncode == 1
    assert "changed after it ran" in done.stderr
    assert having(fleet_8) == [*range(8)]


@pytest.mark.parametrize("down", ["COMMIT;", "DROP INDEX CONCURRENTLY x;"])
def test_a_down_part_follows_the_rules_of_a_file(fleet_8: Fleet, down: str) -> None:
    file = fleet_8.migration(LIKES, f"{UP}{DOWN}SELECT 1;\n{down}")
    done = fleet_8.here("migrate")
    assert done.returncode == 2
    assert f"{file}:4: " in done.stderr


def test_without_a_transaction_an_index_comes_and_goes(fleet_8: Fleet) -> None:
    fleet_8.migration(
        "0002_index.sql",
        "-- shardctl: no-transaction\nCREATE INDEX CONCURRENTLY by_user ON photos (user_id);\n"
        f"{DOWN}DROP INDEX CONCURRENTLY by_user;",
    )
    well(fleet_8.here("migrate", "--canary", "2"))
    well(fleet_8.here("migrate", "rollback", "2"))
    assert fleet_8.query("a", "SELECT count(*) FROM pg_class WHERE relname = 'by_user'") == [(0,)]
    assert fleet_8.query("a", "SELECT count(*) FROM shardctl.migration_begun") == [(0,)]


def test_a_rollout_that_changed_nothing_ends_without_a_down_part(fleet_8: Fleet) -> None:
    fleet_8.migration(LIKES, "CREATE TABLE likes (id bigin);")
    assert fleet_8.here("migrate", "--canary", "1").returncode == 3
    well(fleet_8.here("migrate", "rollback", "0002"))
    fleet_8.migration(LIKES, UP)
    well(fleet_8.here("migrate", "--canary", "1", "--soak", "0s"))
    assert having(fleet_8) == [*range(8)]
