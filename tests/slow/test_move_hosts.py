"""Moves over SSH, and of a source in a cluster of repmgr."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import loads
from tests.fixtures.moves.proof import assert_agreed
from tests.fixtures.servers.managers import ROLE, RepmgrNode, registered
from tests.fixtures.servers.postgres import PgServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab
    from tests.fixtures.servers.sshd import Sshd, SshHome


@pytest.fixture
def fleet_ssh(fleet_own: Lab, sshd: Sshd, ssh_home: SshHome) -> Lab:
    """Give a fleet to whose hosts the servers' own user logs in."""
    assert ssh_home.directory.is_dir()
    shutil.chown(fleet_own.directory / "nodes", sshd.login)
    said = f"host: {sshd.host}, port: {sshd.port}, user: {sshd.login}"
    ssh = f"ssh: {{{said}, key_file: {sshd.user_key}, accept_new: true}}"
    text = fleet_own.file.read_text().replace("nodes/", f"{fleet_own.directory}/nodes/")
    text = text.replace("p1/", f"{fleet_own.directory}/p1/")
    text = re.sub(r"(?m)^(  \w+: \{)(?=host: )", rf"\1{ssh}, ", text)
    fleet_own.file.write_text(text)
    return fleet_own


MOVE = ("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s", "--duplicate-shared")


def move(fleet: Lab) -> None:
    """Move under traffic, and see that nobody noticed."""
    with loads.start(fleet.topology, clients=3, logins=5) as load:
        loads.wait_for_writes(load)
        done = fleet.here(*MOVE)
        assert done.returncode == 0, done.stderr
        loads.wait_for_writes(load)
        report = load.check()
    assert (report.intact, report.failures) == (True, ()), report.as_json()
    assert_agreed(fleet, 2, shard2="c", shard3="c")


def logins(sshd: Sshd) -> int:
    return sshd.log.count("Accepted publickey")


def test_a_whole_move_over_ssh_under_traffic(fleet_ssh: Lab, sshd: Sshd) -> None:
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
    repmgr_program: str, fleet_own: Lab, server_directory: Path
) -> Iterator[RepmgrNode]:
    assert repmgr_program
    with registered(PgServer(fleet_own.server("a")), server_directory) as made:
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
    fleet_own: Lab,
    moved_primary: RepmgrNode,
    command: str,
) -> None:
    with fleet_own.file.open("a") as file:
        file.write(f"move: {{clone_with: {command}}}\n")
    move(fleet_own)
    assert "99 standby_clone" in moved_primary.asked(EVENTS)
    members = "SELECT array_agg(node_name) FROM repmgr.nodes"
    assert moved_primary.asked(members) == ["one"]
    server = PgServer(fleet_own.server("c"))
    clone = RepmgrNode(server, moved_primary.directory, 3, "three")
    page = Path("docs/howto/move-shards.md").read_text(encoding="utf-8")
    statements = page[page.index("DELETE FROM repmgr") :].partition("`")[0]
    with server.connect(ROLE) as session:
        session.execute(statements.encode())
    clone.write()
    clone.run("primary", "register")
    assert clone.asked(members) == ["three"]
