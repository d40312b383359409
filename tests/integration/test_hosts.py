"""`shardctl hosts`: every fault that `hosts check` has to find, and whose rights commands have."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks import hosts
from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.hosts.host import SudoRefused
from shardctl.hosts.ssh import Ssh as SshHost
from shardctl.topology.model import Control, Ssh
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import local_node, local_pooler, local_topology
from tests.fixtures.servers.sshd import ROOT

if TYPE_CHECKING:
    from shardctl.topology.model import Topology
    from tests.fixtures.servers.sshd import Sshd, SshHome, StartSshd

OVER_BOX = Ssh("box", None, None, None, accept_new=False)


def faults(topology: Topology) -> dict[tuple[str | None, str], str]:
    """Give what is wrong, by server and test; each has a hint."""
    found = hosts.test(topology, Silent())
    wrong = [one for one in found if one.state != "ok"]
    assert all(one.hint for one in wrong)
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


needs_root = pytest.mark.skipif(not ROOT, reason="only root can give a file to somebody else")


def test_commands_of_the_node_s_own_that_cannot_be_run_are_told(server_directory: Path) -> None:
    def with_status(status: str) -> Topology:
        return one_node(server_directory, control=Control("a", "b", None, status))

    assert "no-such-ctl" in fault(with_status("no-such-ctl status"), "control")
    fault(with_status("echo Cluster is disabled; exit 1"), "control")
    # That no server runs is no fault of the command.
    assert faults(with_status("exit 3")) == {}


def test_a_pooler_s_files_that_cannot_be_used_are_told(server_directory: Path) -> None:
    topology = with_pooler(one_node(server_directory), server_directory)
    config = server_directory / "pgbouncer.ini"
    assert str(config) in fault(topology, "files", "p1")
    config.touch()
    gone = server_directory / "gone" / "aliases.ini"
    topology = with_pooler(topology, server_directory, databases_file=gone)
    assert str(gone.parent) in fault(topology, "files", "p1")


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
    fault(both, "way", None)
    assert {one.server for one in hosts.test(both, Silent())} == {None, "b"}


@needs_root
def test_a_user_whom_sudo_does_not_allow_is_told(remote: Topology, server_directory: Path) -> None:
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed here")
    changed = one_node(server_directory, ssh=OVER_BOX, os_user="nobody")
    assert "nobody" in fault(changed, "user")
    del remote


@pytest.fixture
def odd(start_sshd: StartSshd, ssh_home: SshHome, session_directory: Path) -> None:
    """Let `box` be a host without setsid, psql and awk."""
    programs = session_directory / "odd"
    programs.mkdir()
    for name in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(name).iterdir():
            link = programs / program.name
            if program.name not in ("setsid", "psql", "awk") and not link.is_symlink():
                link.symlink_to(program)
    sshd = start_sshd(f"SetEnv PATH={programs}")
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(sshd.known())


@pytest.mark.usefixtures("odd")
def test_missing_tools_are_told(server_directory: Path) -> None:
    topology = one_node(owned(server_directory), ssh=OVER_BOX)
    (server_directory / "pgbouncer.ini").touch()
    found = faults(with_pooler(topology, server_directory, ssh=OVER_BOX))
    assert found.keys() == {(None, "tools"), ("p1", "guard")}
    assert "psql" in found["p1", "guard"]


@pytest.fixture
def as_root(box: SshHost) -> SshHost:
    """Log in as root."""
    return SshHost(dataclasses.replace(box.settings, user="root"))


def test_whoever_logs_in_runs_servers_unless_that_is_root(box: SshHost, sshd: Sshd) -> None:
    assert accounts.account_on(box, None) is None
    assert accounts.account_on(box, sshd.login) == sshd.login
    with raises_code("account_refused"):
        accounts.account_on(box, "root")
    with raises_code("account_refused"):
        accounts.account_on(box, "no-such-user")
    with pytest.raises(SudoRefused, match=str(sshd.login)):
        accounts.account_on(box, "daemon")


@needs_root
def test_root_who_logs_in_works_as_the_owner_of_a_poolers_directory(
    as_root: SshHost, sshd: Sshd, server_directory: Path
) -> None:
    theirs = server_directory / "theirs"
    theirs.mkdir()
    shutil.chown(theirs, sshd.login)
    (theirs / "roots").mkdir()
    (server_directory / "link.ini").symlink_to(theirs / "shards.ini")
    assert accounts.changes_file(as_root, theirs / "shards.ini") == sshd.login
    assert accounts.changes_file(as_root, server_directory / "link.ini") == sshd.login
    assert accounts.changes_file(as_root, server_directory / "shards.ini") is None
    with raises_code("folder_unsafe", match=str(theirs)):
        accounts.changes_file(as_root, theirs / "roots" / "shards.ini")
    with raises_code("folder_unsafe", match=str(theirs)):
        accounts.changes_folder(as_root, theirs / "roots", sshd.login)
