"""Clones on real servers: of which sources none is made, what is refused, and what is left."""

from __future__ import annotations

import dataclasses
import os
import pickle
import pwd
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl import libpq
from shardctl.postgres import clone as clones
from shardctl.postgres import slots, standby
from shardctl.postgres.clone import CloneOfAnother, CopyFailed, TargetNotEmpty
from shardctl.topology.model import Control
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import APP, HERE, Cloning, rules
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from tests.fixtures.servers.postgres import PgServer


def test_a_directory_with_something_in_it_is_refused_and_left(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    (cloning.data / "thesis.tex").write_text("unique")
    with pytest.raises(TargetNotEmpty, match=r"thesis\.tex"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    assert (cloning.data / "thesis.tex").read_text() == "unique"
    assert cloning.left() == ["c"]


_MAKES = """
import pickle, sys
from shardctl.fanout import Silent
from shardctl.postgres import connection
from shardctl.postgres.clone import make
clone, source, addresses = pickle.loads(bytes.fromhex(sys.argv[1]))
with connection.connect(source.node, source.database, purpose="test", autocommit=True) as session:
    make(
        clone, source, session, addresses=addresses, progress=Silent(), max_rate=12 << 20,
    )
"""
_COPIED = "SELECT max(backup_streamed) > 100000 FROM pg_stat_progress_basebackup"


def make_and_kill(cloning: Cloning) -> None:
    """Make the clone in another process, and kill that one in the middle."""
    slots.make(cloning.at_source(), cloning.clone.slot)
    given = pickle.dumps((cloning.clone, cloning.source, HERE)).hex()
    with ended(subprocess.Popen([sys.executable, "-c", _MAKES, given])) as process:
        wait_for(lambda: cloning.ask(_COPIED))
    assert process.returncode == -signal.SIGKILL


@pytest.mark.long
def test_the_clone_of_another_move_is_refused_and_left(cloning: Cloning) -> None:
    make_and_kill(cloning)
    mine, other = cloning.move, "0badc0de"
    cloning.move = other
    cloning.stack.callback(slots.drop, cloning.at_source(), cloning.clone.slot)
    with pytest.raises(CloneOfAnother, match=mine):
        cloning.make()
    assert not clones.remove(cloning.clone)
    with pytest.raises(CloneOfAnother):
        clones.discard(cloning.clone)
    cloning.move = mine
    assert cloning.state() == "copying"


def test_a_promoted_clone_is_not_deleted(cloning: Cloning) -> None:
    target = cloning.start()
    cloning.promote(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
    cloning.open_up(target)
    with raises_code("clone_serves"):
        clones.remove(cloning.clone)
    clones.keep(cloning.clone)
    assert not clones.remove(cloning.clone)
    assert target.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a directory")
def test_a_mount_point_is_refused_before_anything_is_copied(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    # On the device of its parent, as a volume of the same disk is.
    mount = ["mount", "--bind", str(cloning.data), str(cloning.data)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with raises_code("clone_refused"):
            cloning.make()
    finally:
        subprocess.run(["umount", cloning.data], check=True)  # noqa: S607
    assert cloning.left() == ["c"]


PASSWORD = "s3cret-of-the-clone"  # noqa: S105  # of a role that lives as long as a test
TRUST = "host all all 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n"


def test_rules_in_files_that_are_not_cloned_are_refused(cloning: Cloning) -> None:
    names = cloning.directory / "names"
    names.write_text("visitor\n")
    with (
        rules(cloning.server, f"{TRUST}host all @{names} 127.0.0.1/32 trust\n"),
        raises_code("files_elsewhere", match=str(names)),
    ):
        cloning.make()


def test_a_password_comes_from_a_passfile_and_gets_nowhere_else(cloning: Cloning) -> None:
    passfile = cloning.directory / "passfile"
    passfile.write_text(f"*:*:*:copier:{PASSWORD}\n")
    passfile.chmod(0o600)
    if (account := cloning.clone.server.account) is not None:
        os.chown(passfile, pwd.getpwnam(account).pw_uid, -1)
    copier = dataclasses.replace(cloning.database, replication_user="copier")
    session = cloning.at_source()
    session.execute(f"CREATE ROLE copier REPLICATION LOGIN PASSWORD '{PASSWORD}'")
    # As pg_basebackup -R has left it, where the source was a standby once.
    session.execute(f"ALTER SYSTEM SET primary_conninfo = 'host=x password={PASSWORD}'")
    asked = TRUST + "host replication copier 127.0.0.1/32 scram-sha-256\n"
    with rules(cloning.server, asked):
        for options in ({}, {"passfile": str(passfile)}):  # which is the operator's machine's
            cloning.database = dataclasses.replace(copier, options=options)
            with pytest.raises(CopyFailed, match="no password supplied"):
                cloning.make()
        here = {"passfile": str(passfile)}
        cloning.database = dataclasses.replace(cloning.database, subscription_options=here)
        seen = b""
        with ThreadPoolExecutor(1) as beside:
            making = beside.submit(cloning.make, max_rate=24 << 20)
            while not making.done():
                seen += b"".join(_command_lines())
        making.result()
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


def test_a_slot_that_a_stranger_uses_is_not_dropped(cloning: Cloning) -> None:
    session, name = cloning.at_source(), cloning.clone.slot
    slots.make(session, name)

    program = cloning.clone.server.binaries.program("pg_receivewal")
    conninfo = libpq.for_replication(*cloning.source, "stranger")
    where = ["-D", str(cloning.directory), "--slot", name, "-d", conninfo]
    receiving = subprocess.Popen([program, "--no-password", "--no-loop", *where])
    with ended(receiving) as stranger:
        wait_for(lambda: cloning.ask(f"{_ACTIVE}'{name}'"))
        with raises_code("slot_taken", match="stranger"):
            slots.drop(session, name, patience_s=1)
        assert stranger.poll() is None
    wait_for(lambda: not cloning.ask(f"{_ACTIVE}'{name}'"))
    assert slots.drop(session, name)


NONE = Control(start=None, stop=None, reload=None, status=None)


def test_a_data_directory_of_another_version_is_not_started(cloning: Cloning) -> None:
    cloning.make()
    (cloning.data / "PG_VERSION").write_text("9\n")
    with raises_code("server_did_not_start", match="PG_VERSION|version 9"):
        standby.start(cloning.clone)
    (cloning.data / "PG_VERSION").unlink()
    with raises_code("server_did_not_start", match="PG_VERSION|version 9"):
        standby.start(cloning.clone)


def test_of_a_server_without_a_log_its_host_says_why_it_did_not_start(cloning: Cloning) -> None:
    cloning.make()
    server = cloning.clone.server
    server.log.symlink_to("elsewhere")
    with raises_code("server_did_not_start", match=server.log.name):
        server.start()


def test_a_server_on_another_port_is_told(cloning: Cloning) -> None:
    cloning.start()
    node = dataclasses.replace(cloning.target, port=free_ports(1)[0])
    server = dataclasses.replace(cloning.clone.server, node=node)
    with raises_code("server_elsewhere", match=str(cloning.port)):
        server.start()


def test_what_its_own_commands_say_counts_with_what_is_seen(cloning: Cloning) -> None:
    cloning.make()
    server = cloning.clone.server

    def with_status(command: str) -> bool:
        control = dataclasses.replace(NONE, status=command)
        node = dataclasses.replace(cloning.target, control=control)
        return dataclasses.replace(server, node=node).running()

    assert with_status("exit 0")
    assert not with_status("exit 3")
    assert not with_status("echo no unit >&2; exit 4"), "no server is without a pid file"
    (cloning.data / "postmaster.pid").write_text("1\n")
    with raises_code("control_failed"):
        with_status("echo no unit >&2; exit 4")
    standby.start(cloning.clone)
    assert with_status("exit 3"), "it is there, whatever the command reports"


def test_a_command_that_does_not_stop_it_is_told(cloning: Cloning) -> None:
    cloning.start()
    control = dataclasses.replace(NONE, stop="echo in vain >&2")
    node = dataclasses.replace(cloning.target, control=control)
    server = dataclasses.replace(cloning.clone.server, node=node)
    with raises_code("server_did_not_stop"):
        server.stop()
    assert cloning.clone.server.running()


_RULES = """\
host all postgres,someone 127.0.0.0/8 trust
host all all ::1/128 trust
local all all trust
host app,sameuser,"The App" all 10.0.0.0/8 md5
host all all 10.0.1.0 255.255.255.0 md5
host replication all all trust
host all nobody all reject
host all postgres samenet ident map=m
host all all db-a.example reject
host "all" all all scram-sha-256
"""


def test_a_clone_accepts_shardctl_by_the_rules_of_its_source(clone_source: PgServer) -> None:
    with rules(clone_source, _RULES), clone_source.connect() as session:
        ours = ["10.0.0.9", "127.0.0.1", "::1", "fe80::1%lo"]
        found = clones.rules("postgres", session, ours)
        wide = clones.rules("postgres", session, ["10.0.0.0/7"])
    head, *lines = found.splitlines()
    assert head.startswith("# shardctl: ")
    assert lines == [
        "host all postgres 127.0.0.1/32 trust",
        "host all postgres ::1/128 trust",
        'host app,sameuser,"The App" postgres 10.0.0.9/32 md5',
        'host all postgres samenet ident "map=m"',
        'host all postgres "db-a.example" reject',
        "host all postgres 10.0.0.9/32 scram-sha-256",
        "host all postgres 127.0.0.1/32 scram-sha-256",
        "host all postgres ::1/128 scram-sha-256",
        "host all postgres fe80::1/128 scram-sha-256",
    ]
    assert wide.splitlines()[1:] == [
        'host app,sameuser,"The App" postgres 10.0.0.0/8 md5',
        "host all postgres 10.0.1.0/24 md5",
        *lines[3:5],
        "host all postgres 10.0.0.0/7 scram-sha-256",
    ]


def test_a_role_that_the_source_rejects_is_refused(clone_source: PgServer) -> None:
    only = "host all postgres 127.0.0.1/32 trust\n"
    with rules(clone_source, only), clone_source.connect() as session:
        with raises_code("role_not_admitted"):
            clones.rules(APP, session, ["127.0.0.1"])
        with raises_code("role_not_admitted"):
            clones.rules("postgres", session, ["10.0.0.9"])
