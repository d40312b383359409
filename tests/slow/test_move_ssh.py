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

from shardctl.moves import prediction
from tests.fixtures.moves.by_ssh import reached
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet
    from tests.fixtures.servers.sshd import Sshd

MOVE = (
    "move-shards",
    "2-3",
    "--to",
    "c",
    "--yes",
    "--retain",
    "0s",
    "--keep-reverse",
    "0",
    "--duplicate-shared",
)


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
    done = fleet_ssh.here(*MOVE, "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["predicted_pause_ms"]
    # A busy machine's round trips are in it, too, and they have no upper limit.
    assert planned > prediction.STREAMED_MS + prediction.SSH_MS, "the way to the pooler is in it"
    assert logins(sshd) == before + 1, "what has one host has one connection"
    move(fleet_ssh)
    report = json.loads(fleet_ssh.here("moves", "show", "-o", "json").stdout)["report"]
    assert report["proof"] == "compared"
    assert report["predicted_pause_ms"] > prediction.SSH_MS, "measured, and that way"
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


def test_a_host_that_is_away_for_a_while_does_not_end_a_copy(
    fleet_ssh: MovingFleet, sshd: Sshd
) -> None:
    fleet_ssh.choice = dataclasses.replace(fleet_ssh.choice, max_rate="8M")
    mover = fleet_ssh.mover("start")
    wait_until_copying(fleet_ssh, sshd)
    sshd.stop()
    wait_for(lambda: not copies(fleet_ssh))
    sshd.start()
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


def test_names_are_what_they_are_to_every_shell_on_the_way(fleet_ssh_odd: MovingFleet) -> None:
    move(fleet_ssh_odd)


def test_whoever_logs_in_becomes_the_servers_user_by_sudo(fleet_ssh_sudo: MovingFleet) -> None:
    move(fleet_ssh_sudo)


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


def test_a_node_with_its_own_commands_is_called_off(fleet_ssh_debian: MovingFleet) -> None:
    mover = fleet_ssh_debian.mover("start", "step cutover run")
    mover.at("step cutover run")
    mover.kill()
    finish(fleet_ssh_debian, "abort")
    assert not fleet_ssh_debian.runs("c")
    assert list(fleet_ssh_debian.place.parent.iterdir()) == []


def test_a_command_that_does_not_start_the_node_is_told(fleet_ssh: MovingFleet, sshd: Sshd) -> None:
    fleet_ssh.of_target = ", control: {start: 'echo no such cluster >&2; exit 2'}"
    reached(fleet_ssh, sshd, user=sshd.login)
    done = fleet_ssh.here(*MOVE)
    assert done.returncode == 3, done.stderr
    assert "node c: the command control.start exited with code 2: no such cluster\n" in done.stderr
    assert "control.start" in done.stderr
    fleet_ssh.of_target = ""
    # As another operator would log in, who has the key elsewhere.
    key = shutil.copy2(sshd.user_key, sshd.directory / "another")
    reached(fleet_ssh, sshd, user=sshd.login, key=Path(key))
    finish(fleet_ssh, "resume")
    assert fleet_ssh.owner == "c"


def test_connections_that_break_before_the_pause_are_opened_again(
    fleet_ssh: MovingFleet, sshd: Sshd
) -> None:
    with Clients(fleet_ssh) as clients:
        mover = fleet_ssh.mover("start", "step cutover run")
        mover.at("step cutover run")
        sshd.signal(signal.SIGKILL)
        mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    prove(fleet_ssh, clients)


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
