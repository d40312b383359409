"""Confirm: what was moved is compared row for row, beside maintenance and DDL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import comparison, confirm, confirm_sessions
from shardctl.moves.confirm import CopiesDiffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet


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


TABLES = 2
"""Of two moved shards, by their migration."""


def run(fleet: MovedFleet, node: str, statement: str) -> Callable[[], None]:
    """Give what runs a statement that may not wait for a lock for long."""

    def do() -> None:
        with fleet.connect(node) as session:
            session.execute("SET lock_timeout = '2s'")
            session.execute(statement.encode())

    return do


def fill(fleet: MovedFleet, *tables: str) -> None:
    """Give shard 2 more tables, of some blocks each."""
    for table in tables:
        fleet.execute(
            "a",
            f"CREATE TABLE shard2.{table} AS SELECT n, repeat('x', 1000) AS t "
            "FROM generate_series(1, 100) n",
        )


def compared(world: MoveContext) -> tuple[int, int]:
    found = confirm.compare(world)
    assert found is not None
    return found.tables, found.rows


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE shard3.photos",
        "ALTER TABLE shard3.photos RENAME TO pictures",
        (
            "ALTER TABLE shard3.photos ADD COLUMN later integer DEFAULT 1;"
            "ALTER TABLE shard3.photos RENAME COLUMN user_id TO owner_id"
        ),
    ],
)
def test_a_table_that_the_targets_clients_altered_costs_its_own_comparison_only(
    fleet_spares: MovedFleet, statement: str
) -> None:
    for shard in (2, 3):
        fleet_spares.execute("a", f"INSERT INTO shard{shard}.photos (user_id) VALUES (1)")
    world = fleet_spares.cut_over([2, 3], "c")
    run(fleet_spares, "c", statement)()
    confirm.make(world)
    move = world.journal()
    assert move is not None
    assert move.proof == "forked"
    told = {"tables": TABLES - 1, "rows": 1, "uncompared": ["shard3.photos"]}
    assert (move.report or {}).items() >= told.items()
    world.close()


def test_a_large_table_is_compared_in_parts_and_ddl_passes_between_them(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fleet_spares, "large")
    monkeypatch.setattr(comparison, "BLOCKS", 4)
    world = fleet_spares.cut_over([2, 3], "c")
    assert compared(world) == (TABLES + 1, 100)
    ask, between = (
        confirm_sessions.Sessions.ask,
        [
            "VACUUM FULL shard2.large",
            "ALTER TABLE shard2.large ADD COLUMN later integer DEFAULT 1",
            "UPDATE shard2.large SET t = ''; DELETE FROM shard2.large WHERE n < 50",
        ],
    )

    def after_a_part(
        self: confirm_sessions.Sessions, node: Any, session: Any, query: Any, **named: Any
    ) -> Any:
        found = ask(self, node, session, query, **named)
        if node == "c" and between and b"(4,0)" in query.as_bytes(session):
            run(fleet_spares, "c", between.pop(0))()
        return found

    monkeypatch.setattr(confirm_sessions.Sessions, "ask", after_a_part)
    assert compared(world) == (TABLES + 1, 100)
    assert between == []
    fleet_spares.execute("a", f"DELETE FROM {world.plan.retired[0]}.large WHERE n = 77")
    with pytest.raises(CopiesDiffer, match=r"shard2\.large"):
        confirm.compare(world)
    world.close()
