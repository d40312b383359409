"""`verify --check settings`: what loses data, and what prevents moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import settings
from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

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


def test_the_locks_that_a_shards_relations_take_are_counted(fleet_8: Fleet) -> None:
    for number in range(40):
        fleet_8.execute("b", f"CREATE TABLE shard6.notes_{number} (note text PRIMARY KEY)")
    (finding,) = verify(fleet_8, "settings")
    assert told([finding]) == [
        ("settings", "lock_table_small", "b", (), "max_locks_per_transaction")
    ]
    # photos and its index, two sequences, and of each other table an index, TOAST and its index.
    assert str(164 * 50) in finding.expected


LOSING = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "track_counts": "off",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
}
POOR = {"wal_level": "minimal", "max_wal_senders": "0", "hot_standby": "off"}


def test_what_loses_data_or_prevents_moves_is_found(pg_server: StartServer) -> None:
    poor = pg_server(LOSING | POOR)
    losing: dict[str, object] = {f"{name}_{value}": {} for name, value in LOSING.items()}

    def found() -> dict[str, object]:
        with poor.connect() as session:
            return {code: words for code, _, words in settings.unfit(session, [])}

    assert found() == {**losing, "hot_standby_off": {}, "wal_level_minimal": {}}
    with poor.connect() as session:
        session.execute("ALTER SYSTEM SET wal_level = replica")
        session.execute("ALTER SYSTEM SET hot_standby = on")
    poor.stop()
    poor.start()
    few = {"most": "0", "used": 0, "free": 2, "least": 2}
    assert found() == {**losing, "wal_senders_few": few}
    with poor.connect() as session:
        session.execute("ALTER SYSTEM SET max_wal_senders = 3")
        session.execute("SELECT pg_reload_conf()")
    wait_for(lambda: found().get("restart_pending") == {"value": "'0'"})
    poor.stop()
