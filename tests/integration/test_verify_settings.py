"""`verify --check settings`: what loses data, and roles that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import QUERIES
from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.servers.postgres import StartServer


def test_roles_that_begin_with_other_settings_on_one_node_are_found(
    fleet_8: Fleet,
) -> None:
    """What a session begins with counts: a role's setting in the database, its own, all roles'."""
    role, database = fleet_8.role, fleet_8.database
    for node, statement in (
        ("b", f"ALTER ROLE {role} SET default_transaction_read_only = on"),
        ("b", f"ALTER DATABASE {database} SET lock_timeout = '1s'"),
        ("b", f"ALTER DATABASE {database} SET app.key = 'secret'"),
        ("a", f"ALTER DATABASE {database} SET search_path = '$user', public"),
        ("a", f"ALTER DATABASE {database} SET work_mem = '5MB'"),
        ("b", f"ALTER ROLE {role} IN DATABASE {database} SET work_mem = '5MB'"),
        ("b", f"ALTER ROLE {role} SET work_mem = '6MB'"),
        ("b", f"ALTER ROLE {role} SET synchronous_commit = off"),
        ("a", f"ALTER ROLE {role} SET standard_conforming_strings = 'false'"),
        ("a", f"ALTER ROLE {role} SET row_security = 'yes'"),
        ("a", f"ALTER ROLE {role} SET statement_timeout = 0"),
    ):
        fleet_8.execute(node, statement)
    found = [(f.code, f.severity.value, f.node, f.object, f.actual) for f in verify(fleet_8)]
    assert found == [
        ("role_setting_differs", severity, "b", f"{name} of role {role}", actual)
        for name, severity, actual in (
            ("app.key", "note", "(not shown)"),
            ("default_transaction_read_only", "error", "on"),
            ("lock_timeout", "note", "1s"),
            ("standard_conforming_strings", "error", "not set"),
            ("synchronous_commit", "note", "off"),
        )
    ]


LOSING = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "track_counts": "off",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
}


def test_what_loses_data_is_found(pg_server: StartServer) -> None:
    with pg_server(LOSING).connect() as session:
        rows = session.execute(QUERIES["unsafe_settings"])
        found = {name: words["value"] for _, name, words in rows}
    assert found == LOSING
