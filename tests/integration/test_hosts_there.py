"""What shardctl asks of a host is the same over SSH: accounts, programs, ports, files."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.hosts.host import SudoRefused
from shardctl.hosts.ssh import Ssh
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
