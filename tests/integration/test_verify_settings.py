"""`verify --check settings`: what loses data, and what prevents moves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.fixtures.fleets import PHOTOS, Fleet
from tests.fixtures.servers import wait_for
from tests.fixtures.verifying import SAFE, told, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers import PgServer, StartServer


@contextmanager
def setting(server: PgServer, name: str, value: str) -> Iterator[None]:
    """Change a parameter that needs no restart, for a while."""
    with server.connect() as connection:

        def now() -> str:
            row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            assert row is not None
            return str(row[0])

        before = now()
        change = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value)
        connection.execute(change)
        connection.execute("SELECT pg_reload_conf()")
        wait_for(lambda: now() == value)
        try:
            yield
        finally:
            connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            connection.execute("SELECT pg_reload_conf()")
            wait_for(lambda: now() == before)


@pytest.fixture
def unfit_fleet(pg_server: StartServer, tmp_path: Path) -> Iterator[Fleet]:
    """Give a fleet on servers whose settings prevent moves."""
    servers = {
        "a": pg_server(SAFE | {"wal_level": "minimal", "max_wal_senders": "0"}),
        "b": pg_server(
            SAFE
            | {
                "max_wal_senders": "1",
                "max_replication_slots": "0",
                "hot_standby": "off",
                "max_connections": "20",
                "max_locks_per_transaction": "15",
            }
        ),
    }
    fleet = Fleet(tmp_path, servers, "unfit", "unfit")
    fleet.migration("0001_photos.sql", PHOTOS)
    fleet.migration("0002_notes.sql", "CREATE TABLE notes (note text PRIMARY KEY);")
    fleet.init()
    yield fleet
    for server in servers.values():
        server.stop("immediate")


def test_a_healthy_fleet_has_no_findings(healthy_fleet: Fleet) -> None:
    assert verify(healthy_fleet) == []


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("fsync", "off", "error"),
        ("full_page_writes", "off", "error"),
        ("autovacuum", "off", "error"),
        ("track_counts", "off", "warning"),
        ("zero_damaged_pages", "on", "error"),
        ("ignore_checksum_failure", "on", "error"),
    ],
)
def test_what_loses_data_is_found(
    healthy_fleet: Fleet, name: str, value: str, severity: str
) -> None:
    with setting(healthy_fleet.servers["b"], name, value):
        (finding,) = verify(healthy_fleet)
    assert told([finding]) == [("settings", f"{name}_{value}", "b", (), name)]
    assert finding.severity.value == severity
    assert f"ALTER SYSTEM SET {name} = " in finding.hint
    assert verify(healthy_fleet) == []


def test_what_waits_for_a_restart_is_found(healthy_fleet: Fleet) -> None:
    """As earlier versions left it on the target of every move."""
    name = "max_logical_replication_workers"
    pending = f"SELECT pending_restart FROM pg_settings WHERE name = '{name}'"

    def waits() -> bool:
        return healthy_fleet.query("b", pending) == [(True,)]

    healthy_fleet.execute("b", f"ALTER SYSTEM SET {name} = 0")
    try:
        healthy_fleet.execute("b", "SELECT pg_reload_conf()")
        wait_for(waits)
        (finding,) = verify(healthy_fleet)
        keep = finding.hint.split("`")[3]
        assert keep == f"ALTER SYSTEM SET {name} = '4'"
    finally:
        healthy_fleet.execute("b", f"ALTER SYSTEM SET {name} = 4")
        healthy_fleet.execute("b", "SELECT pg_reload_conf()")
        wait_for(lambda: not waits())
        healthy_fleet.execute("b", f"ALTER SYSTEM RESET {name}")
        healthy_fleet.execute("b", "SELECT pg_reload_conf()")
    assert told([finding]) == [("settings", "restart_pending", "b", (), name)]
    assert (finding.severity.value, finding.actual) == ("warning", f"{name} = '4' until a restart")


def test_what_prevents_moves_is_found(unfit_fleet: Fleet) -> None:
    findings = verify(unfit_fleet)
    assert told(findings) == [
        ("settings", "wal_level_minimal", "a", (), "wal_level"),
        ("settings", "hot_standby_off", "b", (), "hot_standby"),
        ("settings", "wal_senders_few", "b", (), "max_wal_senders"),
        ("settings", "replication_slots_few", "b", (), "max_replication_slots"),
        ("settings", "lock_table_small", "b", (), "max_locks_per_transaction"),
    ]
    assert [f.severity.value for f in findings] == ["error"] + ["warning"] * 4
    # photos, notes, an index each, two sequences, and the TOAST table of notes with its index.
    assert findings[-1].actual == "a lock table of 300, with 8 relations a shard"
    assert "max_locks_per_transaction = 20`" in findings[-1].hint


def test_slots_in_use_are_not_free(healthy_fleet: Fleet) -> None:
    """Ten is the default of both; an inactive slot is told by `leftovers`."""
    names = [f"slot_{n}" for n in range(10)]
    for name in names:
        healthy_fleet.execute("a", f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        (finding,) = verify(healthy_fleet, "settings")
    finally:
        for name in names:
            healthy_fleet.execute("a", f"SELECT pg_drop_replication_slot('{name}')")
    assert told([finding]) == [
        ("settings", "replication_slots_few", "a", (), "max_replication_slots")
    ]
    assert finding.actual == "10, 10 of them in use"
