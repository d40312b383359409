"""Moves over SSH, and of a source in a cluster of repmgr."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.writers import Clients
from tests.fixtures.processes import matching
from tests.fixtures.servers.managers import RepmgrNode, registered
from tests.fixtures.servers.postgres import PgServer, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet
    from tests.fixtures.servers.sshd import Sshd, SshHome


@pytest.fixture
def fleet_ssh(fleet_points: MovingFleet, sshd: Sshd, ssh_home: SshHome) -> MovingFleet:
    """Give a fleet to whose hosts the servers' own user logs in."""
    assert ssh_home.directory.is_dir()
    said = f"host: {sshd.host}, port: {sshd.port}, user: {sshd.login}"
    fleet_points.of_all = f"ssh: {{{said}, key_file: {sshd.user_key}, accept_new: true}}"
    fleet_points.file.unlink()
    return fleet_points


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


def copies(fleet: MovingFleet) -> list[int]:
    """List the processes that make a copy in the place of node c."""
    work = fleet.place.with_name(f"{fleet.place.name}.clone")
    return matching(lambda process: (process / "cwd").readlink() == work)


def send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


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


def test_a_copy_outlives_shardctl_and_its_connection(fleet_ssh: MovingFleet, sshd: Sshd) -> None:
    fleet_ssh.choice = dataclasses.replace(fleet_ssh.choice, max_rate="8M")
    mover = fleet_ssh.mover("start")
    wait_until_copying(fleet_ssh, sshd)
    copying = copies(fleet_ssh)
    send_all(copying, signal.SIGSTOP)  # it must not end before it is looked at
    mover.kill()
    sshd.signal(signal.SIGKILL)
    wait_for(lambda: not fleet_ssh.is_locked() and not sshd.sessions())
    assert copies(fleet_ssh) == copying
    for pid in copying:
        status = Path(f"/proc/{pid}/status").read_text()
        assert "ShdPnd:\t0000000000000000" in status, "a signal waits for it"
    send_all(copying, signal.SIGCONT)
    mover = fleet_ssh.mover("resume")
    assert mover.end() == 0, mover.said
    assert fleet_ssh.owner == "c"


EVENTS = "SELECT array_agg(node_id || ' ' || event ORDER BY event_timestamp) FROM repmgr.events"
ROWS = "SELECT (SELECT count(*) FROM repmgr.nodes) + (SELECT count(*) FROM repmgr.events)"


@pytest.fixture
def moved_primary(
    repmgr_program: str, fleet_points: MovingFleet, server_directory: Path
) -> Iterator[RepmgrNode]:
    assert repmgr_program
    with registered(fleet_points.servers["a"], server_directory) as made:
        yield made


@pytest.fixture
def command(server_directory: Path) -> str:
    """Give the command of docs/howto/move-shards.md, which runs the script of that page."""
    page = Path("docs/howto/move-shards.md").read_text(encoding="utf-8")
    script = server_directory / "clone-with-repmgr"
    script.write_text(page.partition("```bash\n")[2].partition("```")[0])
    script.chmod(0o644)
    return f"sh {script}"


@pytest.mark.parametrize("given", [False, True], ids=["pg_basebackup", "command"])
def test_a_whole_move_of_a_source_in_a_repmgr_cluster(
    fleet_points: MovingFleet,
    moved_primary: RepmgrNode,
    server_directory: Path,
    command: str,
    *,
    given: bool,
) -> None:
    fleet_points.write()
    if given:
        with fleet_points.file.open("a") as file:
            file.write(f"move: {{clone_with: {command}}}\n")
    move(fleet_points)
    events = moved_primary.asked(EVENTS)
    assert ("99 standby_clone" in events) == given
    assert moved_primary.asked("SELECT array_agg(node_name) FROM repmgr.nodes") == ["one"]
    told = fleet_points.ask("c", "SELECT result FROM shardctl.event WHERE result ~ 'repmgr'")
    assert [text.partition(": ")[2] for (text,) in told] == [
        "removed from repmgr's cluster (database repmgr)"
    ]
    # It can be the first of a cluster of its own, even by the source's own id.
    there = moved_primary.server.server
    server = dataclasses.replace(
        there, port=fleet_points.ports["c"], data_directory=fleet_points.place
    )
    alone = RepmgrNode(PgServer(server), server_directory, moved_primary.id, "three")
    alone.write()
    assert alone.asked(ROWS) == 0
    alone.run("primary", "register")
    assert alone.asked("SELECT array_agg(node_name || ' ' || type) FROM repmgr.nodes") == [
        "three primary"
    ]
    assert "three" in alone.run("cluster", "show")
