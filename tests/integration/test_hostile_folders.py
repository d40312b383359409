"""What a user of the machine puts in root's way: links and directories of their own."""

from __future__ import annotations

import dataclasses
import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts, files
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.hosts.reach import host_of
from shardctl.pgbouncer import guard
from shardctl.postgres import binaries, clone
from shardctl.sandbox import local
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import local_pooler

if TYPE_CHECKING:
    from shardctl.topology.model import Pooler
    from tests.fixtures.servers.clones import Cloning
    from tests.fixtures.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root works for other users")

HERE = Local()


@pytest.fixture
def account() -> str:
    """The user who runs servers and poolers for root, and attacks."""
    found = accounts.server_account(None)
    assert found is not None
    return found


@pytest.fixture
def theirs(server_directory: Path, account: str) -> Path:
    """A directory of that user's."""
    path = server_directory / "theirs"
    path.mkdir()
    shutil.chown(path, account)
    return path


@pytest.fixture
def roots(server_directory: Path) -> Path:
    """A directory where only root may write."""
    path = server_directory / "roots"
    path.mkdir()
    return path


def pooler_in(folder: Path, *, os_user: str | None = None) -> Pooler:
    return local_pooler(folder, "p1", 1, os_user=os_user)


def test_the_log_of_a_server_is_not_made_where_a_link_leads(
    cloning: Cloning, account: str, theirs: Path, roots: Path
) -> None:
    server = cloning.clone.server
    server = dataclasses.replace(server, account=account, data_directory=theirs / "c")
    victim = roots / "victim"
    server.log.symlink_to(victim)
    with pytest.raises(CommandFailed):
        server._make_log()
    assert not victim.exists()
    server = dataclasses.replace(server, data_directory=roots / "c")
    server._make_log()
    assert server.log.owner() == account
    assert server.log.stat().st_mode & 0o777 == 0o600


def test_root_makes_nothing_below_a_directory_of_another_user(
    cloning: Cloning, account: str, theirs: Path
) -> None:
    """A directory of root's in it can be renamed, and another put in its place."""
    (theirs / "roots").mkdir()
    server = cloning.clone.server
    server = dataclasses.replace(server, account=account, data_directory=theirs / "roots" / "c")
    with raises_code("folder_unsafe", match=str(theirs)):
        server._make_log()
    with raises_code("folder_unsafe", match=str(theirs)):
        clone.discard(dataclasses.replace(cloning.clone, server=server))
    assert list((theirs / "roots").iterdir()) == []


def test_a_link_on_the_way_does_not_hide_who_may_exchange_it(
    account: str, theirs: Path, roots: Path
) -> None:
    (theirs / "link").symlink_to(roots)
    (roots / "link").symlink_to(theirs / "link")
    with raises_code("folder_unsafe", match=str(theirs)):
        accounts.changes_folder(HERE, roots / "link", account)
    assert accounts.changes_folder(HERE, roots, account) is None
    assert accounts.changes_folder(HERE, theirs / "new" / "newer", account) == account
    roots.chmod(0o1777)
    with raises_code("folder_unsafe", match=str(roots)):
        host_of(pooler_in(roots))
    accounts.require_own(roots / "new", account)


def test_a_poolers_file_is_written_as_the_owner_of_its_directory(
    account: str, theirs: Path, roots: Path
) -> None:
    pooler = pooler_in(theirs)
    host, path = host_of(pooler), pooler.databases_file
    victim = roots / "victim"
    victim.write_text("root's")
    path.symlink_to(victim)
    with pytest.raises(files.FileRefused, match="denied"):
        files.write(host, path, "text")
    path.unlink()
    files.write(host, path, "text")
    assert (path.read_text(), path.owner()) == ("text", account)
    assert victim.read_text() == "root's"
    (roots / "shards.ini").symlink_to(path)
    files.write(host_of(pooler_in(roots)), roots / "shards.ini", "more")
    assert (path.read_text(), path.owner()) == ("more", account)


def test_root_writes_only_where_no_other_user_does(theirs: Path, roots: Path) -> None:
    assert host_of(pooler_in(roots)) is not None
    with raises_code("folder_unsafe", match=str(theirs)):
        host_of(pooler_in(theirs, os_user="root"))
    roots.chmod(0o777)
    with raises_code("folder_unsafe", match=str(roots)):
        host_of(pooler_in(roots))


def test_a_guard_runs_as_the_owner_of_the_poolers_directory(
    pg_bouncer: PgBouncer, account: str
) -> None:
    pooler = pg_bouncer.pooler
    armed = guard.arm(
        guard.Guard(host_of(pooler), "test", pooler.databases_file.parent),
        console=f"host=127.0.0.1 port={pooler.port} dbname=pgbouncer user={pooler.admin_user}",
        aliases=["a"],
        after_s=600,
    )
    try:
        assert armed.directory.owner() == account
        pid = int((armed.directory / "pid").read_text())
        assert Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam(account).pw_uid
    finally:
        assert guard.disarm(armed)[0].strip() == "disarmed"


def test_root_starts_no_program_of_a_node_with_a_user(account: str, theirs: Path) -> None:
    for name in binaries.PROGRAMS:
        (theirs / name).write_text(
            f"#!/bin/sh\nid -un >> {theirs}/ran\necho 'postgres (PostgreSQL) 16.1'\n"
        )
        (theirs / name).chmod(0o755)
    assert binaries.find(theirs, account=account).major == 16
    assert set((theirs / "ran").read_text().split()) == {account}


def test_no_link_leads_the_removal_of_a_sandbox_elsewhere(
    theirs: Path, roots: Path, account: str
) -> None:
    victim = roots / "victim"
    victim.mkdir()
    (victim / "shardctl.sandbox").touch()
    (victim / "file").write_text("kept")
    (theirs / "a").symlink_to(victim)
    (theirs / "a.log").symlink_to(victim / "file")
    removed, left = local.remove(theirs / "a", account)
    assert (removed, left) == ((theirs / "a", theirs / "a.log"), None)
    assert list(theirs.iterdir()) == []
    assert (victim / "file").read_text() == "kept"
