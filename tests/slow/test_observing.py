"""Sessions that only ask: a lock or a server that hangs holds them up for seconds, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from shardctl import libpq
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.servers.frozen import frozen
from tests.fixtures.servers.postgres import wait_for
from tests.slow.test_interrupted import OID, WAITS

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

MIGRATE, SQL = ("migrate", "--dry-run"), ("sql", "SELECT 1")
VERIFY, STATUS = ("verify", "--check", "map"), ("status", "--sample", "0")
READ_ONLY = ("read-only", "on", "4", "--dry-run")


@pytest.mark.parametrize("command", [SQL, STATUS, VERIFY], ids=lambda words: words[0])
def test_a_node_that_lets_log_in_and_answers_nothing_is_away(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(libpq.LIVELINESS, "connect_timeout", 2)
    with frozen(fleet_8.servers["b"].port) as port, fleet_8.at_ports(b=port):
        done = fleet_8.here(*command)
    said = done.stdout + done.stderr
    assert done.returncode in {0, 1, 3}, said
    assert "the server accepted the connection and then stopped responding for 2 s" in said


def test_the_others_are_done_without_a_node_that_hangs(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")
    monkeypatch.setitem(libpq.LIVELINESS, "connect_timeout", 2)
    with frozen(fleet_8.servers["b"].port) as port, fleet_8.at_ports(b=port):
        done = fleet_8.here("migrate", "-o", "json")
    assert done.returncode == 3, done.stderr
    [left_out] = json.loads(done.stdout)["left_out"]
    assert left_out["node"] == "b"
    assert fleet_8.query("a", "SELECT to_regclass('shard0.likes') IS NOT NULL") == [(True,)]


@pytest.mark.parametrize("command", [MIGRATE, SQL, READ_ONLY, VERIFY], ids=lambda words: words[0])
def test_a_lock_on_the_map_is_told_with_its_holder(
    fleet_8: Fleet, command: tuple[str, ...]
) -> None:
    with fleet_8.connect("b", autocommit=False, application_name="psql of Ann") as holder:
        holder.execute("LOCK TABLE shardctl.map IN ACCESS EXCLUSIVE MODE")
        pid = holder.info.backend_pid
        done = fleet_8.here(*command)
    said = done.stdout + done.stderr
    assert done.returncode in {0, 1, 3}, said
    assert f"session {pid} (user " in said
    assert "application psql of Ann" in said


@pytest.mark.parametrize("command", [MIGRATE, SQL], ids=lambda words: words[0])
def test_ctrl_c_ends_what_waits_for_a_lock(fleet_8: Fleet, command: tuple[str, ...]) -> None:
    log = fleet_8.servers["b"].log()
    with fleet_8.connect("b", autocommit=False) as holder:
        [(database,)] = holder.execute(OID).fetchall()
        holder.execute("LOCK TABLE shardctl.map IN ACCESS EXCLUSIVE MODE")
        argv = command_line(fleet_8.write(), *command)
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: holder.execute(WAITS, [database]).fetchall())
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        said = fleet_8.servers["b"].log().removeprefix(log)
    assert process.returncode == 130, errors
    assert "canceling statement due to user request" in said
    assert "canceling statement due to lock timeout" not in said
