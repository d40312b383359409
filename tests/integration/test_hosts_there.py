"""What shardctl asks of a host is the same over SSH: accounts, programs, ports, files."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts, files, ports
from shardctl.hosts.host import SudoRefused
from shardctl.hosts.local import Local
from shardctl.hosts.ssh import Ssh
from shardctl.postgres import binaries
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.servers.sshd import Sshd

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lets itself in")


@pytest.fixture
def root(box: Ssh) -> Ssh:
    """Log in as root."""
    return Ssh(dataclasses.replace(box.settings, user="root"))


def test_whoever_logs_in_runs_servers_unless_that_is_root(box: Ssh, sshd: Sshd) -> None:
    assert accounts.account_on(box, None) is None
    assert accounts.account_on(box, sshd.login) == sshd.login
    with raises_code("account_refused"):
        accounts.account_on(box, "root")
    with raises_code("account_refused"):
        accounts.account_on(box, "no-such-user")
    with pytest.raises(SudoRefused, match=str(sshd.login)):
        accounts.account_on(box, "daemon")


def test_what_is_closed_to_a_user_is_found_there(
    box: Ssh, sshd: Sshd, server_directory: Path
) -> None:
    closed = server_directory / "closed $HOME"
    (closed / "below").mkdir(parents=True)
    assert accounts.blocked_at(closed / "below", sshd.login, box) is None
    assert accounts.blocked_at(closed / "not" / "there", sshd.login, box) is None
    closed.chmod(0)
    assert accounts.blocked_at(closed / "below", sshd.login, box) == closed


def test_programs_are_those_of_the_host(
    box: Ssh, sshd: Sshd, server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(binaries.VARIABLE, str(server_directory))
    found = binaries.find(None, account=sshd.login, host=box)
    assert binaries.of_major(found.major, box) == found
    assert binaries.find(found.directory, account=None, host=box) == found
    with raises_code("binaries_refused"):
        binaries.find(server_directory, account=sshd.login, host=box)
    monkeypatch.setattr(binaries, "SYSTEM", (f"{server_directory}/*",))
    monkeypatch.setattr(binaries, "_SYSTEMS", "of_patterns")
    with raises_code("no_binaries"):
        binaries.find(None, account=sshd.login, host=box)


def test_the_program_that_listens_is_named_by_its_own_user(box: Ssh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        mine = f"(pid {os.getpid()})"
        assert mine in str(ports.listener(port))
        assert ports.listener(port, box) is None or os.geteuid() != 0
    assert ports.listener(port) is None


def test_one_file_under_two_names_of_its_host_is_one_file(
    box: Ssh, sshd: Sshd, server_directory: Path
) -> None:
    folder = server_directory / "here"
    folder.mkdir()
    (server_directory / "there").symlink_to(folder)
    if os.geteuid() == 0:
        shutil.chown(folder, sshd.login)
    found = files.place(box, server_directory / "there" / "file")
    assert found == files.place(Local(), folder / "file")
    assert found.path == str(folder / "file")
    assert found != files.place(Local(), folder / "other")
    assert found != files.place(Local(), server_directory / "file")


@needs_root
def test_root_who_logs_in_works_as_the_owner_of_a_poolers_directory(
    root: Ssh, sshd: Sshd, server_directory: Path
) -> None:
    theirs = server_directory / "theirs"
    theirs.mkdir()
    shutil.chown(theirs, sshd.login)
    (theirs / "roots").mkdir()
    (server_directory / "link.ini").symlink_to(theirs / "shards.ini")
    assert accounts.changes_file(root, theirs / "shards.ini") == sshd.login
    assert accounts.changes_file(root, server_directory / "link.ini") == sshd.login
    assert accounts.changes_file(root, server_directory / "shards.ini") is None
    with raises_code("folder_unsafe", match=str(theirs)):
        accounts.changes_file(root, theirs / "roots" / "shards.ini")
    with raises_code("folder_unsafe", match=str(theirs)):
        accounts.changes_folder(root, theirs / "roots", sshd.login)
