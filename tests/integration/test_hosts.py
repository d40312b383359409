"""`shardctl hosts`: how hosts are reached, and every fault that `hosts check` has to find there."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks import hosts
from shardctl.checks.hosts import State
from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.topology.model import Control, Ssh
from tests.fixtures.servers.postgres import local_node, local_pooler, local_topology
from tests.fixtures.servers.sshd import ROOT

if TYPE_CHECKING:
    from shardctl.topology.model import Topology
    from tests.fixtures.fleets.rows import Stated
    from tests.fixtures.servers.sshd import Sshd, SshHome, StartSshd

OVER_BOX = Ssh("box", None, None, None, accept_new=False)


def faults(topology: Topology) -> dict[tuple[str | None, str], str]:
    """Give what is wrong, by server and test; each has a hint."""
    found = hosts.test(topology, Silent())
    wrong = [one for one in found if one.state is not State.ok]
    assert all(one.hint for one in wrong)
    assert hosts.ok(found) == (not any(one.state is State.error for one in found))
    return {(one.server, one.test): one.found for one in wrong}


def fault(topology: Topology, test: str, server: str | None = "a") -> str:
    """Give the only fault that there is."""
    found = faults(topology)
    assert found.keys() == {(server, test)}, found
    return found[server, test]


def one_node(directory: Path, **changes: Any) -> Topology:
    return local_topology(directory, local_node(directory, "a", 1, range(2), **changes))


def with_pooler(topology: Topology, directory: Path, **changes: Any) -> Topology:
    node_aliases = {"databases_file": directory / "aliases.ini", "aliases": ("node",)}
    pooler = local_pooler(directory, "p1", 2, **(node_aliases | changes))
    return dataclasses.replace(topology, poolers={pooler.name: pooler})


def owned(path: Path) -> Path:
    """Give a file or directory to who runs servers here."""
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(path, account)
    return path


# How hosts are reached


def test_a_way_over_ssh_is_told_as_far_as_the_topology_says_it(
    fleet_rows: Stated, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = fleet_rows.fleet.write().read_text()
    ssh = "{host: 127.0.0.1, ssh: {host: db1, user: ann, port: 2222}, os_user: postgres,"
    monkeypatch.setattr(fleet_rows.fleet, "write", lambda: fleet_rows.fleet.file)
    fleet_rows.fleet.file.write_text(text.replace("{host: 127.0.0.1,", ssh, 1))
    found = json.loads(fleet_rows.fleet.here("hosts", "-o", "json").stdout)["hosts"]
    assert found[0] == {
        "server": "a",
        "kind": "node",
        "address": "127.0.0.1",
        "host": "db1",
        "way": "ssh",
        "login": "ann@db1:2222",
        "os_user": "postgres",
    }
    assert found[1]["way"] == "here"


# The command


def test_an_error_is_told_with_its_hint_and_exit_code_1(
    fleet_rows: Stated, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = "/nowhere/lacking"
    text = fleet_rows.fleet.write().read_text()
    monkeypatch.setattr(fleet_rows.fleet, "write", lambda: fleet_rows.fleet.file)
    node = f"{{host: 127.0.0.1, bin_directory: {lacking},"
    fleet_rows.fleet.file.write_text(text.replace("{host: 127.0.0.1,", node, 1))
    done = fleet_rows.fleet.here("hosts", "check")
    assert done.returncode == 1
    told = f", a: programs: {lacking} (bin_directory) is not a directory\n  correct"
    assert told in done.stdout
    assert done.stdout.endswith("1 fault\n")


# What is looked at on this machine


def test_programs_that_are_not_there_are_told(server_directory: Path) -> None:
    bare = server_directory / "bin"
    bare.mkdir()
    told = fault(one_node(server_directory, bin_directory=bare), "programs")
    assert told == f"{bare} (bin_directory) lacks postgres, initdb, pg_ctl"


def test_a_directory_with_something_else_in_it_is_told(server_directory: Path) -> None:
    path = server_directory / "data"
    path.mkdir()
    (path / "letters").touch()
    topology = one_node(server_directory, data_directory=path)
    assert fault(topology, "directory") == f"{path} is not empty and does not belong to a server"
    file = path / "letters"
    topology = one_node(server_directory, data_directory=file)
    assert fault(topology, "directory") == f"{file} is not a directory"


needs_root = pytest.mark.skipif(not ROOT, reason="only root can give a file to somebody else")


@needs_root
def test_a_directory_that_the_server_s_user_may_not_enter_is_told(server_directory: Path) -> None:
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    told = fault(one_node(server_directory, data_directory=closed / "data"), "directory")
    assert told == f"postgres cannot enter {closed}"


def test_commands_of_the_node_s_own_that_cannot_be_run_are_told(server_directory: Path) -> None:
    def with_status(status: str) -> Topology:
        return one_node(server_directory, control=Control("a", "b", None, status))

    told = fault(with_status("no-such-ctl status"), "control")
    assert "no-such-ctl" in told
    told = fault(with_status("echo Cluster is disabled; exit 1"), "control")
    # That no server runs is no fault of the command.
    assert faults(with_status("exit 3")) == {}


def test_a_user_who_is_not_there_is_told_and_nothing_else_of_that_server(
    server_directory: Path,
) -> None:
    topology = one_node(server_directory, os_user="no-such-user")
    pooled = with_pooler(topology, server_directory, os_user="no-such-user")
    found = faults(pooled)
    assert found.keys() == {("a", "user"), ("p1", "user")}


def test_a_pooler_s_files_that_cannot_be_used_are_told(server_directory: Path) -> None:
    topology = with_pooler(one_node(server_directory), server_directory)
    config = server_directory / "pgbouncer.ini"
    assert fault(topology, "files", "p1") == f"{config}: no such file"
    config.touch()
    gone = server_directory / "gone" / "aliases.ini"
    topology = with_pooler(topology, server_directory, databases_file=gone)
    assert fault(topology, "files", "p1").endswith(f"{gone.parent}: no such directory")


# Over SSH


@pytest.fixture
def remote(sshd: Sshd, ssh_home: SshHome, server_directory: Path) -> Topology:
    """Give a node that is reached as `box`, by a user who may go into its directory."""
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(sshd.known())
    owned(server_directory)
    return one_node(server_directory, ssh=OVER_BOX, data_directory=server_directory / "data")


def test_of_a_host_that_cannot_be_reached_that_is_all_that_is_told(
    remote: Topology, sshd: Sshd, server_directory: Path
) -> None:
    sshd.stop()
    here = local_node(server_directory, "b", 2, range(2, 4))
    both = local_topology(server_directory, *remote.nodes.values(), here)
    assert "host box cannot be reached by ssh" in fault(both, "way", None)
    assert {one.server for one in hosts.test(both, Silent())} == {None, "b"}


@needs_root
def test_a_user_whom_sudo_does_not_allow_is_told(remote: Topology, server_directory: Path) -> None:
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed here")
    changed = one_node(server_directory, ssh=OVER_BOX, os_user="nobody")
    told = fault(changed, "user")
    assert told.startswith("host box: postgres may not run commands as nobody")
    del remote


@pytest.fixture
def odd(start_sshd: StartSshd, ssh_home: SshHome, session_directory: Path) -> None:
    """Let `box` be a host without setsid, psql and awk, whose clock is 3 s ahead."""
    programs = session_directory / "odd"
    programs.mkdir()
    for name in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(name).iterdir():
            link = programs / program.name
            if program.name not in ("setsid", "psql", "awk", "date") and not link.is_symlink():
                link.symlink_to(program)
    late = programs / "date"
    late.write_text(f'#!/bin/sh\n{shutil.which("date")} -d "now + 3 seconds" "$@"\n')
    late.chmod(0o755)
    sshd = start_sshd(f"SetEnv PATH={programs}")
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(sshd.known())


@pytest.mark.usefixtures("odd")
def test_missing_tools_and_a_clock_that_is_wrong_are_told(server_directory: Path) -> None:
    topology = one_node(owned(server_directory), ssh=OVER_BOX)
    (server_directory / "pgbouncer.ini").touch()
    found = faults(with_pooler(topology, server_directory, ssh=OVER_BOX))
    clock = found.pop((None, "clock"))
    assert clock.endswith(" ms ahead of shardctl's machine")
    assert 2000 < int(clock.split()[0]) < 4000  # half of the way there is not known
    assert found == {
        (None, "tools"): "lacks awk, setsid",
        ("p1", "guard"): "lacks psql, setsid, awk",
    }
