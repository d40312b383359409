"""`verify --check settings`: what loses data, and what prevents moves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.checks import settings
from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.rolled_back import RolledBack
    from tests.fixtures.servers.postgres import PgServer, StartServer


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
    assert {(f.check, f.code, f.node, f.object, f.severity.value) for f in findings} == {
        ("settings", f"{name}_{value}", "b", name, severity)
        for name, (value, severity) in LOSING.items()
    }
    assert {f.hint.split(" = ")[0] for f in findings} == {
        f"run `ALTER SYSTEM SET {n}" for n in LOSING
    }
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


def test_the_locks_that_a_shards_relations_take_are_counted(rolled_back: RolledBack) -> None:
    for number in range(40):
        rolled_back.execute("b", f"CREATE TABLE shard6.notes_{number} (note text PRIMARY KEY)")
    (finding,) = rolled_back.verify("settings")
    assert told([finding]) == [
        ("settings", "lock_table_small", "b", (), "max_locks_per_transaction")
    ]
    # photos and its index, two sequences, and of each other table an index, TOAST and its index.
    assert str(164 * 50) in finding.expected


def test_what_prevents_moves_is_found(pg_server: StartServer) -> None:
    poor = pg_server({"wal_level": "minimal", "max_wal_senders": "0", "hot_standby": "off"})

    def found() -> dict[str, object]:
        given = {"senders": settings.SENDERS, "shards": settings.SHARDS_AT_ONCE, "schemas": []}
        with poor.connect() as session:
            rows = session.execute(settings.QUERIES["found"], given)
            return {code: words for code, _, words in rows if "off" not in code}

    assert found() == {"wal_level_minimal": {}}
    with poor.connect() as session:
        session.execute("ALTER SYSTEM SET wal_level = replica")
        session.execute("ALTER SYSTEM SET hot_standby = on")
    poor.stop()
    poor.start()
    few = {"most": "0", "used": 0, "free": 2, "least": 2}
    assert found() == {"wal_senders_few": few}
    with poor.connect() as session:
        session.execute("ALTER SYSTEM SET max_wal_senders = 3")
        session.execute("SELECT pg_reload_conf()")
    wait_for(lambda: found() == {"wal_senders_few": few, "restart_pending": {"value": "'0'"}})
    poor.stop()
