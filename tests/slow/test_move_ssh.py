"""Moves of which every node and every pooler is reached over SSH."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet
    from tests.fixtures.servers.sshd import Sshd

MOVE = ("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s", "--duplicate-shared")


def move(fleet: MovingFleet) -> None:
    """Move under traffic, and see that nobody noticed."""
    with Clients(fleet) as clients:
        done = fleet.shardctl(*MOVE)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert fleet.owner == "c"
    prove(fleet, clients)


def logins(sshd: Sshd) -> int:
    return sshd.log.count("Accepted publickey")


def copies(fleet: MovingFleet) -> bool:
    """Tell whether a copy is being made in the place of node c."""
    work = fleet.place.with_name(f"{fleet.place.name}.clone")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "cwd").readlink() == work:
                return True
    return False


def wait_until_copying(fleet: MovingFleet, sshd: Sshd) -> None:
    """Wait until a copy is being made, and who had it begun has heard so and asks after it."""
    wait_for(lambda: copies(fleet))
    asked = sshd.log.count("Starting session")
    wait_for(lambda: sshd.log.count("Starting session") > asked)


def test_a_whole_move_over_ssh_under_traffic(fleet_ssh: MovingFleet, sshd: Sshd) -> None:
    before = logins(sshd)
    done = fleet_ssh.here(*MOVE, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert logins(sshd) == before + 1, "what has one host has one connection"
    move(fleet_ssh)
    report = json.loads(fleet_ssh.here("moves", "show", "-o", "json").stdout)["report"]
    assert report["proof"] == "compared"
    assert 75 < report["predicted_pause_ms"] < 150, "the way to the pooler is in it"
    dropped = fleet_ssh.here("prune", "--yes", "--now")
    assert dropped.returncode == 0, dropped.stderr


@pytest.mark.parametrize("point", ["step follow run", "span fence begin", "span route begin"])
def test_a_move_killed_over_ssh_is_resumed(fleet_ssh: MovingFleet, point: str) -> None:
    with Clients(fleet_ssh) as clients:
        mover = fleet_ssh.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        finish(fleet_ssh, "resume")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert clients.gap() < SERVED_S
    assert fleet_ssh.owner == "c"
    prove(fleet_ssh, clients)


def test_a_copy_outlives_shardctl_and_its_connection(fleet_ssh: MovingFleet, sshd: Sshd) -> None:
    fleet_ssh.choice = dataclasses.replace(fleet_ssh.choice, max_rate="8M")
    mover = fleet_ssh.mover("start")
    wait_until_copying(fleet_ssh, sshd)
    mover.kill()
    sshd.signal(signal.SIGKILL)
    wait_for(lambda: not fleet_ssh.is_locked() and not sshd.sessions())
    assert copies(fleet_ssh), "it goes on"
    mover = fleet_ssh.mover("resume")
    assert mover.end() == 0, mover.said
    assert fleet_ssh.owner == "c"


def test_a_move_over_ssh_is_called_off_without_a_trace(fleet_ssh: MovingFleet) -> None:
    with Clients(fleet_ssh) as clients:
        mover = fleet_ssh.mover("start", "step cutover run")
        mover.at("step cutover run")
        mover.kill()
        finish(fleet_ssh, "abort")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert fleet_ssh.owner == "a"
    assert list(fleet_ssh.place.parent.iterdir()) == []
    prove(fleet_ssh, clients)


def test_a_node_with_its_own_commands_gets_all_that_matters(fleet_ssh_debian: MovingFleet) -> None:
    move(fleet_ssh_debian)
    ((config, rules, most),) = fleet_ssh_debian.ask(
        "c", "SELECT current_setting('config_file'), current_setting('hba_file'),"
        " current_setting('max_connections')"
    )  # fmt: skip
    ((of_source,),) = fleet_ssh_debian.ask("a", "SELECT current_setting('max_connections')")
    assert not config.startswith(str(fleet_ssh_debian.place))
    assert rules == f"{fleet_ssh_debian.place}/pg_hba.conf"
    assert most == of_source
    # Its directory of sockets pg_ctlcluster gives on the command line, and the file says another.
    waiting = "SELECT name FROM pg_settings WHERE pending_restart AND name !~ '^unix_socket'"
    assert fleet_ssh_debian.ask("c", waiting) == []
    assert fleet_ssh_debian.ask("c", "SHOW archive_mode") == [("off",)]


def test_hosts_that_are_lost_in_the_pause_leave_clients_to_the_guards(
    fleet_ssh: MovingFleet, sshd: Sshd
) -> None:
    with Clients(fleet_ssh) as clients:
        mover = fleet_ssh.mover("start", "span route begin")
        mover.at("span route begin")
        sshd.stop()
        mover.go()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        sshd.start()
        finish(fleet_ssh, "resume")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert clients.gap() < SERVED_S
    assert fleet_ssh.owner == "c"
    prove(fleet_ssh, clients)
