"""Clones of sources of all kinds: what is refused of them, their passwords, files and slots."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from shardctl import libpq
from shardctl.hosts import accounts
from shardctl.postgres import slots, standby
from shardctl.postgres.copying import CopyFailed
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    Cloning,
    in_background,
    rules,
)
from tests.fixtures.servers.postgres import wait_for

PASSWORD = "s3cret-of-the-clone"  # noqa: S105  # of a role that lives as long as a test
TRUST = "host all all 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n"


def test_tablespaces_are_refused(cloning_spare: Cloning, server_directory: Path) -> None:
    place = server_directory / "far"
    place.mkdir()
    if (account := accounts.server_account(None)) is not None:
        os.chown(place, pwd.getpwnam(account).pw_uid, -1)
    session = cloning_spare.at_source()
    session.execute(f"CREATE TABLESPACE far LOCATION '{place}'")
    try:
        with raises_code("tablespaces_refused", match="far"):
            cloning_spare.make()
    finally:
        session.execute("DROP TABLESPACE far")
    assert cloning_spare.left() == []


def test_rules_in_files_that_are_not_cloned_are_refused(cloning_spare: Cloning) -> None:
    names = cloning_spare.directory / "names"
    names.write_text("visitor\n")
    with (
        rules(cloning_spare.server, f"{TRUST}host all @{names} 127.0.0.1/32 trust\n"),
        raises_code("files_elsewhere", match=str(names)),
    ):
        cloning_spare.make()


def test_a_password_comes_from_a_passfile_and_gets_nowhere_else(cloning_spare: Cloning) -> None:
    cloning = cloning_spare
    passfile = cloning.directory / "passfile"
    passfile.write_text(f"*:*:*:copier:{PASSWORD}\n")
    passfile.chmod(0o600)
    if (account := cloning.clone.server.account) is not None:
        os.chown(passfile, pwd.getpwnam(account).pw_uid, -1)
    cloning.replication_user = "copier"
    session = cloning.at_source()
    session.execute(f"CREATE ROLE copier REPLICATION LOGIN PASSWORD '{PASSWORD}'")
    # As pg_basebackup -R has left it, where the source was a standby once.
    session.execute(f"ALTER SYSTEM SET primary_conninfo = 'host=x password={PASSWORD}'")
    asked = TRUST + "host replication copier 127.0.0.1/32 scram-sha-256\n"
    with rules(cloning.server, asked):
        for options in ({}, {"passfile": str(passfile)}):  # which is the operator's machine's
            cloning.options = options
            with pytest.raises(CopyFailed, match="no password supplied"):
                cloning.make()
        cloning.subscription_options = {"passfile": str(passfile)}
        thread, raised = in_background(lambda: cloning.make(max_rate="24M"))
        seen = b""
        while thread.is_alive():
            seen += b"".join(_command_lines())
        thread.join()
        assert raised == []
        standby.start(cloning.clone)
        target = cloning.follow()
        seen += b"".join(_command_lines())
    session.execute("ALTER SYSTEM RESET primary_conninfo")
    assert b"pg_basebackup" in seen
    assert PASSWORD.encode() not in seen
    assert PASSWORD.encode() not in (cloning.clone.server.log.read_bytes())
    copied = [file for file in cloning.data.rglob("*") if file.is_file()]
    assert [file for file in copied if PASSWORD.encode() in _held(file)] == []
    assert str(passfile) in (cloning.data / "postgresql.auto.conf").read_text()
    target.close()


def _command_lines() -> list[bytes]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes())
        except OSError:  # it has ended
            continue
    return found


def _held(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:  # the server has removed it
        return b""


_ACTIVE = "SELECT active FROM pg_replication_slots WHERE slot_name = "


def test_a_slot_in_use_is_dropped_only_from_its_own_user(cloning: Cloning) -> None:
    session, name = cloning.at_source(), cloning.clone.slot
    slots.make(session, name)

    def receiving(user: str) -> subprocess.Popen[bytes]:
        program = cloning.clone.server.binaries.program("pg_receivewal")
        # What was ended while it wrote its first file does not begin again beside that.
        folder = cloning.directory / f"wal-of-{user}"
        folder.mkdir()
        conninfo = libpq.for_replication(*cloning.source, user)
        where = ["-D", str(folder), "--slot", name, "-d", conninfo]
        return subprocess.Popen([program, "--no-password", "--no-loop", *where])

    with ended(receiving("stranger")) as stranger:
        wait_for(lambda: cloning.ask(f"{_ACTIVE}'{name}'"))
        with raises_code("slot_taken", match="stranger"):
            slots.drop(session, name, patience_s=1)
        assert stranger.poll() is None
        assert cloning.ask(f"{_ACTIVE}'{name}'")
    wait_for(lambda: not cloning.ask(f"{_ACTIVE}'{name}'"))
    with ended(receiving(name)) as own:
        wait_for(lambda: cloning.ask(f"{_ACTIVE}'{name}'"))
        assert slots.drop(session, name)
        assert own.wait(10) != 0
