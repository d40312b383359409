"""Prune and what depends on a retired schema: never a blind CASCADE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import prune
from tests.fixtures.fleets.retired import ID, RETIRED

if TYPE_CHECKING:
    from tests.fixtures.fleets.retired import Pruned

OUTSIDE = {
    "a view": (
        f"CREATE VIEW public.v AS SELECT count(*) FROM {RETIRED}.photos",
        "DROP VIEW public.v",
        "view public.v",
    ),
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
    "a default of a column": (
        f"CREATE TABLE public.t (n bigint DEFAULT nextval('{RETIRED}.numbers'))",
        "DROP TABLE public.t",
        "default value for public.t.n",
    ),
    "a column of a composite type": (
        f"CREATE TABLE public.t (one {RETIRED}.photos)",
        "DROP TABLE public.t",
        "table public.t",
    ),
    "a table that inherits": (
        f"CREATE TABLE public.t () INHERITS ({RETIRED}.photos)",
        "DROP TABLE public.t",
        "table public.t",
    ),
    "a partition": (
        f"CREATE TABLE public.t PARTITION OF {RETIRED}.parted FOR VALUES IN (1)",
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
    for statement in (
        "CREATE SEQUENCE {}.numbers",
        "CREATE TABLE {}.parted (n integer) PARTITION BY LIST (n)",
        "CREATE FUNCTION {}.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    ):
        fleet_retired.fleet.execute("a", statement.format(RETIRED))
    for make, remove, told in OUTSIDE.values():
        fleet_retired.retire(3)
        chosen = fleet_retired.plan()
        fleet_retired.fleet.execute("a", make)
        try:
            assert told in (fleet_retired.verdicts()[f"a/{RETIRED}"] or "")
            # It came after the plan was made: that is seen in the transaction that drops.
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


def test_everything_of_its_own_goes_with_a_schema(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    with fleet_retired.fleet.connect("a") as session:
        session.execute(f"SET search_path = {RETIRED}".encode())
        for statement in EVERYTHING.split(";\n"):
            session.execute(statement.encode())
    assert fleet_retired.verdict() is None
    fleet_retired.carry_out()
    assert fleet_retired.left() == []
    fleet_retired.fleet.execute("a", "DROP PUBLICATION told")


EVERYTHING = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TYPE pair AS (a mood, b integer);
CREATE DOMAIN short AS text CHECK (length(value) < 5);
CREATE TABLE parted (n integer, p pair, s short, at timestamptz) PARTITION BY RANGE (n);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE heir (extra serial) INHERITS (photos);
CREATE VIEW shown AS SELECT p.id, l.id AS liked FROM photos p JOIN likes l ON l.photo = p.id;
CREATE VIEW shown_again AS SELECT * FROM shown;
CREATE MATERIALIZED VIEW kept AS SELECT * FROM shown;
CREATE RULE quiet AS ON DELETE TO tags DO INSTEAD NOTHING;
CREATE POLICY all_of_it ON tags USING (true);
CREATE STATISTICS counts ON user_id, about FROM photos;
CREATE FUNCTION twice(photos) RETURNS bigint BEGIN ATOMIC SELECT $1.id * 2; END;
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER fired AFTER INSERT ON tags EXECUTE FUNCTION fires();
CREATE AGGREGATE total (bigint) (SFUNC = int8pl, STYPE = bigint);
CREATE COLLATION mine FROM "C";
CREATE PUBLICATION told FOR TABLE photos;
CREATE SEQUENCE counted OWNED BY tags.name
"""


def test_who_depends_the_other_way_round_does_not_keep_a_schema(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2)
    fleet_retired.record()
    fleet = fleet_retired.fleet
    fleet.execute("a", "CREATE TABLE public.countries (id integer PRIMARY KEY)")
    try:
        add = "ADD c integer REFERENCES public.countries"
        fleet.execute("a", f"ALTER TABLE {RETIRED}.photos {add}")
        fleet_retired.carry_out()
        assert fleet_retired.left() == []
        assert fleet.query("a", "SELECT count(*) FROM public.countries") == [(0,)]
    finally:
        fleet.execute("a", "DROP TABLE public.countries")
