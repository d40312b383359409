"""Moves over SSH, and of a source in a cluster of repmgr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.managers import RepmgrNode, registered

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


EVENTS = "SELECT array_agg(node_id || ' ' || event ORDER BY event_timestamp) FROM repmgr.events"


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


def test_a_whole_move_of_a_source_in_a_repmgr_cluster(
    fleet_points: MovingFleet,
    moved_primary: RepmgrNode,
    command: str,
) -> None:
    fleet_points.write()
    with fleet_points.file.open("a") as file:
        file.write(f"move: {{clone_with: {command}}}\n")
    move(fleet_points)
    assert "99 standby_clone" in moved_primary.asked(EVENTS)
    assert moved_primary.asked("SELECT array_agg(node_name) FROM repmgr.nodes") == ["one"]
    told = fleet_points.ask("c", "SELECT result FROM shardctl.event WHERE result ~ 'repmgr'")
    assert [text.partition(": ")[2] for (text,) in told] == [
        "removed from repmgr's cluster (database repmgr)"
    ]
