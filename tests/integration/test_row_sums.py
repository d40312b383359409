"""The numbers that rows are compared by: what differs has another one, whatever a type can hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from shardctl.moves import comparison
from shardctl.moves.comparison import QUERIES
from shardctl.postgres import catalog

if TYPE_CHECKING:
    import psycopg

    from tests.fixtures.servers.postgres import StartServer

MADE = """
CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE FUNCTION hidden(mood) RETURNS text LANGUAGE sql AS $$ SELECT 'the same' $$;
CREATE CAST (mood AS text) WITH FUNCTION hidden(mood) AS ASSIGNMENT;
CREATE SCHEMA other;
CREATE TABLE other.ran (by text);
"""
DIFFERENT = {
    "text COLLATE loose": ("a", "A"),
    "text": (None, ""),
    "mood": ("good", "bad"),
    "bpchar": ("a", "a "),
    "bytea": (b"\\x00", b"\\x01"),
    "numeric": ("1.0", "1.00"),
    "float8": ("0", "-0"),
    "regclass": ("pg_class", "pg_type"),
    "mood[]": (["good"], ["bad"]),
    "bigint[]": ([1, None], [1]),
}


@pytest.fixture(scope="module")
def session(pg_server: StartServer) -> Any:
    with pg_server().connect(autocommit=True) as made:
        made.execute(MADE)
        yield made


def number(session: psycopg.Connection[Any]) -> object:
    """Give the number of the only row of table `one`, as `confirm` computes it."""
    query = QUERIES["tables"].format(held=catalog.QUERIES["held"], schemas=sql.Literal("public"))
    [(schema, name, blocks, names, how)] = session.execute(query).fetchall()
    table = comparison.Table(schema, schema, name, blocks, tuple(zip(names, how, strict=True)))
    query = sql.SQL("SELECT {} FROM one AS t").format(table.row())
    [(found,)] = session.execute(query).fetchall()
    return found


@pytest.mark.parametrize("kind", DIFFERENT)
def test_values_that_are_not_the_same_have_other_numbers(
    session: psycopg.Connection[Any], kind: str
) -> None:
    numbers = []
    for value in DIFFERENT[kind]:
        with session.transaction(force_rollback=True):
            session.execute(f"CREATE TABLE one (v {kind}, w text)".encode())
            given = sql.SQL("INSERT INTO one VALUES (CAST(%s AS {}))").format(
                sql.SQL(kind.partition(" ")[0])
            )
            session.execute(given, [value])
            numbers.append(number(session))
    assert len({*numbers}) == 2


def test_a_cast_of_the_tables_owner_is_not_run(session: psycopg.Connection[Any]) -> None:
    """It would run as `database.user`, which may be a superuser."""
    with session.transaction(force_rollback=True):
        session.execute("CREATE TABLE one (v mood)")
        session.execute(
            "CREATE FUNCTION attack(one) RETURNS text LANGUAGE sql AS"
            " $$ INSERT INTO other.ran VALUES (current_user); SELECT 'x' $$"
        )
        session.execute("CREATE CAST (one AS text) WITH FUNCTION attack(one)")
        session.execute("INSERT INTO one VALUES ('good')")
        number(session)
        assert session.execute("SELECT FROM other.ran").fetchall() == []
        session.execute("SELECT (t.*)::text FROM one AS t")  # what runs it
        assert session.execute("SELECT FROM other.ran").fetchall() == [()]
