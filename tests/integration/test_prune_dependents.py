"""Prune and what depends on a retired schema: never a blind CASCADE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import prune
from tests.fixtures.fleets.retired import ID, RETIRED

if TYPE_CHECKING:
    from tests.fixtures.fleets.retired import Pruned

OUTSIDE = {
    "a view in a live shard": (
        f"CREATE VIEW shard0.v AS SELECT count(*) FROM {RETIRED}.photos",
        "DROP VIEW shard0.v",
        "view shard0.v",
    ),
    "a foreign key": (
        f"CREATE TABLE public.t (photo bigint REFERENCES {RETIRED}.photos)",
        "DROP TABLE public.t",
        "table constraint t_photo_fkey on public.t",
    ),
    "a function with a SQL body": (
        f"CREATE FUNCTION public.f() RETURNS bigint RETURN (SELECT count(*) FROM {RETIRED}.photos)",
        "DROP FUNCTION public.f",
        "function public.f()",
    ),
    "a table that inherits": (
        f"CREATE TABLE public.t () INHERITS ({RETIRED}.photos)",
        "DROP TABLE public.t",
        "table public.t",
    ),
    "a trigger": (
        f"CREATE TRIGGER t AFTER INSERT ON shard0.tags EXECUTE FUNCTION {RETIRED}.fires()",
        "DROP TRIGGER t ON shard0.tags",
        "trigger t on shard0.tags",
    ),
}


def test_what_something_outside_depends_on_is_named_and_left(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    fires = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    fleet_retired.fleet.execute("a", f"CREATE FUNCTION {RETIRED}.fires() {fires}")
    for make, remove, told in OUTSIDE.values():
        fleet_retired.retire(3)
        chosen = fleet_retired.plan()
        fleet_retired.fleet.execute("a", make)
        try:
            with pytest.raises(prune.PruneUnfinished) as caught:
                fleet_retired.carry_out(chosen)
            assert caught.value.exit_code == 3
            assert str(told) in caught.value.message
            assert [one.schema for one in caught.value.dropped] == [f"shard3__retired_{ID}"]
            assert fleet_retired.left() == [RETIRED]
        finally:
            fleet_retired.fleet.execute("a", remove)
    fleet_retired.carry_out()
    assert fleet_retired.left() == []


def test_a_schema_with_many_objects_goes_table_by_table_whatever_hangs_together(
    fleet_retired: Pruned, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    fleet_retired.fleet.execute(
        "a",
        f"SET search_path = {RETIRED};"
        "CREATE TABLE a (n integer) PARTITION BY RANGE (n);"
        "CREATE TABLE b PARTITION OF a FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (n);"
        "CREATE TABLE c PARTITION OF b FOR VALUES FROM (0) TO (9)",
    )
    monkeypatch.setattr(prune, "_LARGEST_BATCH", 3)
    monkeypatch.setattr(prune, "_PATIENCE_S", 0)
    fleet_retired.carry_out()
    assert fleet_retired.left() == []
