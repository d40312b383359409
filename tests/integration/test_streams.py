"""Standard streams that are closed, full or read by no one, a user without a home, and signals."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

WAITS = "SELECT FROM pg_locks WHERE relation IS NOT NULL AND NOT granted AND database = %s::oid"
OID = "SELECT oid FROM pg_database WHERE datname = current_database()"


def shell(fleet: Fleet, line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as `"$@"` in a line of a shell."""
    argv = ["bash", "-c", f"set -o pipefail; {line}", "bash"]
    argv += command_line(fleet.write(), *arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def pending(fleet: Fleet) -> None:
    fleet.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")


def migrated(fleet: Fleet) -> bool:
    return fleet.query("b", "SELECT to_regclass('shard7.likes') IS NOT NULL") == [(True,)]


@pytest.mark.parametrize(
    ("line", "code"), [('"$@" >&-', 0), ('"$@" > /dev/full', 3), ('"$@" | true', 0)]
)
def test_a_change_is_carried_out_whatever_becomes_of_its_result(
    fleet_8: Fleet, line: str, code: int
) -> None:
    pending(fleet_8)
    done = shell(fleet_8, line, "migrate", "--yes", "-o", "json")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert migrated(fleet_8)


def test_a_command_that_reads_says_that_its_result_has_no_room(fleet_8: Fleet) -> None:
    done = shell(fleet_8, '"$@" > /dev/full', "moves", "list")
    assert done.returncode == 1, done.stderr
    assert shell(fleet_8, '"$@" >&-', "moves", "list").returncode == 0


def test_a_signal_that_ends_a_process_cancels_a_migration_as_ctrl_c(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_wider.sql", "ALTER TABLE photos ADD COLUMN width int;")
    log = fleet_8.servers["a"].log()
    with fleet_8.connect("a", autocommit=False) as holder:
        [(database,)] = holder.execute(OID).fetchall()
        for shard in range(4):
            holder.execute(f"LOCK TABLE shard{shard}.photos IN ACCESS EXCLUSIVE MODE".encode())
        argv = command_line(fleet_8.write(), "migrate", "--yes", "--lock-timeout", "50000ms")
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: holder.execute(WAITS, [database]).fetchall())
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
        said = fleet_8.servers["a"].log().removeprefix(log)
    assert process.returncode == 130, errors
    assert "canceling" in said
