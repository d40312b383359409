"""`verify --check settings`: what loses data, and what prevents moves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg import sql

from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.rolled_back import RolledBack
    from tests.fixtures.servers.postgres import PgServer


@contextmanager
def set_all(server: PgServer, wanted: dict[str, str]) -> Iterator[None]:
    """Change parameters that need no restart, for a while."""
    with server.connect() as connection:

        def now() -> dict[str, str]:
            query = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)"
            return dict(connection.execute(query, [list(wanted)]).fetchall())

        before = now()
        for name, value in wanted.items():
            change = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value)
            connection.execute(change)
        connection.execute("SELECT pg_reload_conf()")
        wait_for(lambda: now() == wanted)
        try:
            yield
        finally:
            for name in wanted:
                connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            connection.execute("SELECT pg_reload_conf()")
            wait_for(lambda: now() == before)


LOSING = {
    "fsync": ("off", "error"),
    "full_page_writes": ("off", "error"),
    "autovacuum": ("off", "error"),
    "track_counts": ("off", "warning"),
    "zero_damaged_pages": ("on", "error"),
    "ignore_checksum_failure": ("on", "error"),
}


def test_what_loses_data_is_found(fleet_healthy_shared: Fleet) -> None:
    assert verify(fleet_healthy_shared) == []
    with set_all(
        fleet_healthy_shared.servers["b"], {name: value for name, (value, _) in LOSING.items()}
    ):
        findings = verify(fleet_healthy_shared)
    assert told(findings) == [
        ("settings", f"{name}_{value}", "b", (), name) for name, (value, _) in LOSING.items()
    ]
    for finding, (name, (_, severity)) in zip(findings, LOSING.items(), strict=True):
        assert finding.severity.value == severity
        assert f"ALTER SYSTEM SET {name} = " in finding.hint
    assert verify(fleet_healthy_shared) == []


def test_roles_that_begin_with_other_settings_on_one_node_are_found(
    rolled_back: RolledBack,
) -> None:
    """What a session begins with counts: a role's setting in the database, its own, all roles'."""
    role, database = rolled_back.role, rolled_back.fleet.database
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
        rolled_back.execute(node, statement)
    found = [(f.code, f.severity.value, f.node, f.object, f.actual) for f in rolled_back.verify()]
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


def test_the_relations_of_the_largest_shard_are_counted(rolled_back: RolledBack) -> None:
    rolled_back.execute("b", "CREATE TABLE shard6.notes (note text PRIMARY KEY)")
    # photos, notes, an index each, two sequences, and the TOAST table of notes with its index.
    assert rolled_back.look("b", "settings").relations == 8


def test_slots_in_use_are_not_free(fleet_healthy_shared: Fleet) -> None:
    """Ten is the default of both; an inactive slot is told by `leftovers`."""
    names = [f"slot_{n}" for n in range(10)]
    for name in names:
        fleet_healthy_shared.execute("a", f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        (finding,) = verify(fleet_healthy_shared, "settings")
    finally:
        for name in names:
            fleet_healthy_shared.execute("a", f"SELECT pg_drop_replication_slot('{name}')")
    assert told([finding]) == [
        ("settings", "replication_slots_few", "a", (), "max_replication_slots")
    ]
    assert finding.actual == "10, 10 of them in use"
