"""Confirm where columns hold OIDs of objects, which as text are names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import confirm
from shardctl.moves.confirm import CopiesDiffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.spares import MovedFleet

ROLE = "referred_to"
REFERRING = f"""
CREATE FUNCTION f(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE OPERATOR ### (FUNCTION = f, RIGHTARG = integer);
CREATE COLLATION c FROM "C";
CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple);
CREATE TEXT SEARCH CONFIGURATION g (COPY = pg_catalog.simple);
CREATE TYPE own AS (n integer);
CREATE TABLE plain (
    c regclass, cs regclass[], t regtype, p regproc, s regprocedure, o regoper, r regoperator,
    g regconfig, d regdictionary, l regcollation, n regnamespace);
INSERT INTO plain VALUES (
    'photos', '{{photos,pg_class,NULL}}', 'own', 'f', 'f(integer)', '###', '###(NONE,integer)',
    'g', 'd', 'c', 'shard2');
CREATE DOMAIN known AS regclass CHECK (value IS NOT NULL);
CREATE TYPE link AS (what known, n integer);
CREATE DOMAIN links AS link[];
CREATE TABLE nested (k known, ks known[], one link, many links, plain_oid oid);
INSERT INTO nested VALUES (
    'photos', '{{photos}}', ('photos', 1), '{{"(photos,2)",NULL}}', 'photos'::regclass);
CREATE TABLE whose (role regrole);
INSERT INTO whose VALUES ('{ROLE}')
"""


@pytest.fixture
def referring(fleet_spares: MovedFleet) -> Iterator[MovedFleet]:
    """Give a fleet in whose shard 2 tables refer to objects there, and to a role."""
    fleet_spares.execute("a", f"DROP ROLE IF EXISTS {ROLE}; CREATE ROLE {ROLE}")
    with fleet_spares.connect("a") as session, session.transaction():
        session.execute("SET LOCAL search_path = shard2")
        for statement in REFERRING.split(";\n"):
            session.execute(statement.encode())
    yield fleet_spares
    fleet_spares.execute("a", f"DROP ROLE {ROLE}")


def test_the_same_objects_under_other_names_are_no_difference(referring: MovedFleet) -> None:
    facts = referring.here("move-shards", "2-3", "--to", "c", "--dry-run")
    told = " ".join(facts.stderr.split() + facts.stdout.split())
    assert "shard2.nested.k" in told
    world = referring.cut_over([2, 3], "c")
    found = confirm.compare(world)
    assert found is not None
    assert (found.tables, found.rows) == (5, 3)
    world.close()


def test_another_object_of_the_same_name_is_a_difference(referring: MovedFleet) -> None:
    world = referring.cut_over([2, 3], "c")
    retired = world.plan.retired[0]
    # As text it is the same on both sides, and the target has the number of the dropped role.
    referring.execute("a", f"DROP ROLE {ROLE}; CREATE ROLE {ROLE}")
    referring.execute("a", f"UPDATE {retired}.whose SET role = '{ROLE}'::regrole")
    with pytest.raises(CopiesDiffer) as caught:
        confirm.compare(world)
    assert caught.value.tables == ("shard2.whose: 1 rows on a, 1 on c",)
    world.close()
