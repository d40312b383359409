"""Ctrl-C cancels what runs in the servers, at once, and says so."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from typing import Any

    import psycopg

    from tests.fixtures.fleets.fleet import Fleet

WAITS = "SELECT FROM pg_locks WHERE relation IS NOT NULL AND NOT granted AND database = %s::oid"
OID = "SELECT oid FROM pg_database WHERE datname = current_database()"


def interrupted(fleet: Fleet, holder: psycopg.Connection[Any], *arguments: str) -> tuple[int, str]:
    """Press Ctrl-C when the command waits for a lock, which is held until it has ended."""
    [(database,)] = holder.execute(OID).fetchall()
    argv = command_line(fleet.write(), *arguments)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: holder.execute(WAITS, [database]).fetchall())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_verify_deep_is_cancelled_and_waits_for_no_timeout(fleet_8: Fleet) -> None:
    log = fleet_8.servers["a"].log()
    with fleet_8.connect("a", autocommit=False) as holder:
        for shard in range(4):
            holder.execute(f"LOCK TABLE shard{shard}.photos IN ACCESS EXCLUSIVE MODE".encode())
        code, errors = interrupted(fleet_8, holder, "verify", "--deep", "--check", "ids")
        said = fleet_8.servers["a"].log().removeprefix(log)
    assert code == 130, errors
    assert errors.startswith("interrupted: cancelling the running statements\n"), errors
    assert "canceling statement due to user request" in said
    assert "canceling statement due to lock timeout" not in said


@pytest.mark.parametrize("command", ["migrate", "init"])
def test_a_migration_that_waits_is_cancelled_and_rolled_back(fleet_8: Fleet, command: str) -> None:
    fleet_8.migration("0002_wider.sql", "ALTER TABLE photos ADD COLUMN width int;")
    log = fleet_8.servers["a"].log()
    with fleet_8.connect("a", autocommit=False) as holder:
        for shard in range(4):
            holder.execute(f"LOCK TABLE shard{shard}.photos IN ACCESS EXCLUSIVE MODE".encode())
        code, errors = interrupted(fleet_8, holder, command, "--lock-timeout", "50000ms")
        said = fleet_8.servers["a"].log().removeprefix(log)
    assert code == 130, errors
    assert errors.startswith("interrupted: cancelling the running statements\n"), errors
    assert "every batch of shards is finished or rolled back" in errors
    assert "canceling statement due to user request" in said
    assert fleet_8.query(
        "a", "SELECT count(*) FROM shardctl.migration WHERE file LIKE '0002%'"
    ) == [(0,)]
    assert fleet_8.here(command).returncode == 0


def test_what_cannot_be_taken_back_is_not_cancelled(fleet_8: Fleet) -> None:
    """A cancelled CREATE INDEX CONCURRENTLY would leave an invalid index."""
    fleet_8.migration(
        "0002_index.sql",
        "-- shardctl: no-transaction\nCREATE INDEX CONCURRENTLY photos_user ON photos (user_id);",
    )
    argv = command_line(fleet_8.write(), "migrate", "--jobs", "1")
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("SELECT count(*) FROM shard0.photos")
        holder.execute("INSERT INTO shard0.photos (user_id) VALUES (1)")
        with (
            subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process,
            fleet_8.connect("a") as other,
        ):
            waits = (
                "SELECT FROM pg_stat_activity WHERE query LIKE '%%CONCURRENTLY%%' "
                "AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
            )
            wait_for(lambda: other.execute(waits.encode()).fetchall())
            process.send_signal(signal.SIGINT)
            wait_for(lambda: "interrupted" in (process.stderr.readline() if process.stderr else ""))
            holder.rollback()
            process.communicate(timeout=120)
    assert process.returncode == 130
    invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    assert fleet_8.query("a", invalid) == [(0,)]
