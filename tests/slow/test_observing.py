"""Sessions that only ask: a lock or a server that hangs holds them up for seconds, and Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl import libpq
from tests.fixtures.servers.frozen import frozen

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
    assert str(pid) in said
