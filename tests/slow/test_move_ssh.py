"""Moves of which every node and every pooler is reached over SSH."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.remote import reached
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet
    from tests.fixtures.sshd import Sshd

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


def test_a_whole_move_over_ssh_under_traffic(remote: MovingFleet, sshd: Sshd) -> None:
    before = logins(sshd)
    done = remote.here(*MOVE, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert logins(sshd) == before + 1, "what has one host has one connection"
    move(remote)
    report = json.loads(remote.here("moves", "show", "-o", "json").stdout)["report"]
    assert report["proof"] == "compared"
    assert 75 < report["predicted_pause_ms"] < 150, "the way to the pooler is in it"
    dropped = remote.here("prune", "--yes", "--now")
    assert dropped.returncode == 0, dropped.stderr


@pytest.mark.parametrize("point", ["step follow run", "span fence begin", "span route begin"])
def test_a_move_killed_over_ssh_is_resumed(remote: MovingFleet, point: str) -> None:
    with Clients(remote) as clients:
        mover = remote.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        finish(remote, "resume")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert clients.gap() < SERVED_S
    assert remote.owner == "c"
    prove(remote, clients)


def test_a_copy_outlives_shardctl_and_its_connection(remote: MovingFleet, sshd: Sshd) -> None:
    remote.choice = dataclasses.replace(remote.choice, max_rate="8M")
    mover = remote.mover("start")
    wait_until_copying(remote, sshd)
    mover.kill()
    sshd.signal(signal.SIGKILL)
    wait_for(lambda: not remote.is_locked() and not sshd.sessions())
    assert copies(remote), "it goes on"
    mover = remote.mover("resume")
    assert mover.end() == 0, mover.said
    assert remote.owner == "c"


def test_a_host_that_is_away_for_a_while_does_not_end_a_copy(
    remote: MovingFleet, sshd: Sshd
) -> None:
    remote.choice = dataclasses.replace(remote.choice, max_rate="8M")
    mover = remote.mover("start")
    wait_until_copying(remote, sshd)
    sshd.stop()
    wait_for(lambda: not copies(remote))
    sshd.start()
    assert mover.end() == 0, mover.said
    assert remote.owner == "c"


def test_a_move_over_ssh_is_called_off_without_a_trace(remote: MovingFleet) -> None:
    with Clients(remote) as clients:
        mover = remote.mover("start", "step cutover run")
        mover.at("step cutover run")
        mover.kill()
        finish(remote, "abort")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert remote.owner == "a"
    assert list(remote.place.parent.iterdir()) == []
    prove(remote, clients)


def test_names_are_what_they_are_to_every_shell_on_the_way(remote_odd: MovingFleet) -> None:
    move(remote_odd)


def test_whoever_logs_in_becomes_the_servers_user_by_sudo(remote_by_sudo: MovingFleet) -> None:
    move(remote_by_sudo)


def test_a_node_with_its_own_commands_gets_all_that_matters(remote_debian: MovingFleet) -> None:
    move(remote_debian)
    ((config, rules, most),) = remote_debian.ask(
        "c", "SELECT current_setting('config_file'), current_setting('hba_file'),"
        " current_setting('max_connections')"
    )  # fmt: skip
    ((of_source,),) = remote_debian.ask("a", "SELECT current_setting('max_connections')")
    assert not config.startswith(str(remote_debian.place))
    assert rules == f"{remote_debian.place}/pg_hba.conf"
    assert most == of_source
    # Its directory of sockets pg_ctlcluster gives on the command line, and the file says another.
    waiting = "SELECT name FROM pg_settings WHERE pending_restart AND name !~ '^unix_socket'"
    assert remote_debian.ask("c", waiting) == []
    assert remote_debian.ask("c", "SHOW archive_mode") == [("off",)]


def test_a_node_with_its_own_commands_is_called_off(remote_debian: MovingFleet) -> None:
    mover = remote_debian.mover("start", "step cutover run")
    mover.at("step cutover run")
    mover.kill()
    finish(remote_debian, "abort")
    assert not remote_debian.runs("c")
    assert list(remote_debian.place.parent.iterdir()) == []


def test_a_command_that_does_not_start_the_node_is_told(remote: MovingFleet, sshd: Sshd) -> None:
    remote.of_target = ", control: {start: 'echo no such cluster >&2; exit 2'}"
    reached(remote, sshd, user=sshd.login)
    done = remote.here(*MOVE)
    assert done.returncode == 3, done.stderr
    assert "node c: its command to start ended with code 2: no such cluster\n" in done.stderr
    assert "control.start" in done.stderr
    remote.of_target = ""
    # As another operator would log in, who has the key elsewhere.
    key = shutil.copy2(sshd.user_key, sshd.directory / "another")
    reached(remote, sshd, user=sshd.login, key=Path(key))
    finish(remote, "resume")
    assert remote.owner == "c"


def test_connections_that_break_before_the_pause_are_opened_again(
    remote: MovingFleet, sshd: Sshd
) -> None:
    with Clients(remote) as clients:
        mover = remote.mover("start", "step cutover run")
        mover.at("step cutover run")
        sshd.signal(signal.SIGKILL)
        mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    prove(remote, clients)


def test_hosts_that_are_lost_in_the_pause_leave_clients_to_the_guards(
    remote: MovingFleet, sshd: Sshd
) -> None:
    with Clients(remote) as clients:
        mover = remote.mover("start", "span route begin")
        mover.at("span route begin")
        sshd.stop()
        mover.go()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        sshd.start()
        finish(remote, "resume")
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert clients.gap() < SERVED_S
    assert remote.owner == "c"
    prove(remote, clients)
