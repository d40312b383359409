"""Functions that a role puts where `database.user` could run them, as it may before 15."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.rows import Stated

PLANT = """
CREATE FUNCTION public.concat(text, text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN ALTER ROLE {role} SUPERUSER; RETURN $1; END $$
"""
GREET = "SELECT concat('a'::text, 'b'::text)"
"""It fits better than the one of pg_catalog, which takes any types."""


@contextmanager
def planted(fleet: Fleet, *, left: bool = True) -> Iterator[None]:
    """Let the application's role put its function there; without `left` it has not yet."""
    role = sql.Identifier(fleet.role)
    with fleet.connect("a") as session:
        session.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(role))
    if left:
        with fleet.connect("a", user=fleet.role) as session:
            session.execute(sql.SQL(PLANT).format(role=role))
    try:
        yield
    finally:
        with fleet.connect("a") as session:
            session.execute("DROP FUNCTION IF EXISTS public.concat(text, text)")
            session.execute(sql.SQL("REVOKE CREATE ON SCHEMA public FROM {}").format(role))
            session.execute(sql.SQL("ALTER ROLE {} NOSUPERUSER").format(role))


def is_super(fleet: Fleet) -> bool:
    [(found,)] = fleet.query("a", f"SELECT rolsuper FROM pg_roles WHERE rolname = '{fleet.role}'")
    return bool(found)


@pytest.mark.parametrize("where", [["--shards", "0"], ["--nodes"]])
def test_a_function_of_the_application_s_role_is_not_run_by_sql(
    fleet_rows: Stated, where: list[str]
) -> None:
    fleet = fleet_rows.fleet
    with planted(fleet):
        done = fleet_rows.sql(GREET, "--write", "--yes", *where)
        assert not is_super(fleet)
    assert done.returncode == 1
    assert str(fleet.role) in done.stderr
    assert "public.concat(text,text)" in done.stderr
    assert fleet_rows.sql(GREET, *where).returncode == 0


@pytest.mark.parametrize("command", ["init", "migrate"])
def test_nor_by_a_migration(fleet_8: Fleet, command: str) -> None:
    fleet_8.migration("0002_greet.sql", f"CREATE TABLE greeting AS {GREET} AS it;")
    with planted(fleet_8):
        done = fleet_8.here(command, "--yes")
        assert not is_super(fleet_8)
    assert done.returncode == 1
    assert str(fleet_8.role) in done.stderr
    assert fleet_8.here(command, "--yes").returncode == 0


def test_verify_reports_the_grant_before_anything_is_planted(fleet_rows: Stated) -> None:
    fleet = fleet_rows.fleet
    with planted(fleet, left=False):
        done = fleet.here("verify", "--check", "connection")
    assert done.returncode == 1
    assert str(fleet.role) in done.stdout
    assert str(fleet.role) in done.stdout
    assert fleet.here("verify", "--check", "connection").returncode == 0
