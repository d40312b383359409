"""Code of who owns a table: no command runs it with the rights of `database.user`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.postgres import catalog
from shardctl.postgres.connection import connect
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet

TABLES = """
-- shardctl: key photos.user_id
ALTER TABLE photos ADD caption text;
CREATE TABLE plain (id bigint PRIMARY KEY);
"""
SPY = """
CREATE FUNCTION shard2.spy({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        PERFORM pg_notify('spied', current_user);
        RAISE EXCEPTION 'run as a superuser';
    END IF;
    RETURN {value};
END $$
"""


@pytest.fixture
def owned(fleet_8: Fleet) -> Iterator[Fleet]:
    """Let the application's role own the tables of shard 2, with a row of shard 3."""
    fleet_8.migration("0002_tables.sql", TABLES)
    fleet_8.init()
    fleet_8.execute("a", f"GRANT CREATE ON SCHEMA shard2 TO {fleet_8.role}")
    for table in ("photos", "plain"):
        for shard in (2, 3):
            fleet_8.execute("a", f"ALTER TABLE shard{shard}.{table} OWNER TO {fleet_8.role}")
    fleet_8.execute("a", f"GRANT CREATE ON SCHEMA shard3 TO {fleet_8.role}")
    yield fleet_8
    for shard in (2, 3):
        fleet_8.execute("a", f"DROP SCHEMA shard{shard} CASCADE")


def as_owner(fleet: Fleet, *statements: str) -> None:
    with fleet.connect("a", user=fleet.role) as session:
        for statement in statements:
            session.execute(statement.encode())


def test_a_cast_of_its_own_is_not_used_to_look_for_misplaced_rows(owned: Fleet) -> None:
    as_owner(
        owned,
        "CREATE TYPE shard2.evil AS (n bigint)",
        SPY.format(arguments="shard2.evil", result="bigint", value="$1.n"),
        "CREATE CAST (shard2.evil AS bigint) WITH FUNCTION shard2.spy(shard2.evil) AS IMPLICIT",
        "ALTER TABLE shard2.photos ALTER user_id TYPE shard2.evil USING ROW(user_id)::shard2.evil",
        "INSERT INTO shard2.photos (user_id) VALUES (ROW(3))",
    )
    done = owned.here("rows", "misplaced")
    assert "run as a superuser" not in done.stderr
    assert "photos" in done.stderr


def test_a_view_in_the_place_of_a_table_is_not_read(owned: Fleet) -> None:
    topology = owned.topology()
    node = topology.nodes[NodeName("a")]
    owned.execute("a", "CREATE VIEW shard2.seen AS SELECT 1 AS id")
    with connect(node, topology.database, purpose="test") as session:
        catalog.read_tables_only(session)
        refused = sql.SQL("SELECT id FROM ONLY shard2.seen")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            session.execute(refused)
