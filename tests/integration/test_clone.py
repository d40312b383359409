"""Clones made and removed on real servers: what is refused, what breaks off, what is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import Interrupted
from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.postgres import clone as clones
from shardctl.postgres import copying, slots, standby
from shardctl.postgres import source as sources
from shardctl.postgres.clone import CloneOfAnother, CloneRefused, CloneServes, TargetNotEmpty
from shardctl.postgres.copying import CopyFailed, FilesElsewhere
from shardctl.postgres.overrides import NoWayIn
from shardctl.postgres.slots import SlotTaken
from shardctl.postgres.source import ReplicationRefused, SourceElsewhere, TablespacesRefused
from tests.fixtures.clones import (
    HERE,
    SLOW,
    Cloning,
    Recording,
    clone_source,
    cloning,
    cloning_spare,
    photos,
    rules,
    spare_source,
)
from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.servers import PgServer

__all__ = ["clone_source", "cloning", "cloning_spare", "spare_source"]  # fixtures

PASSWORD = "s3cret-of-the-clone"  # noqa: S105  # of a role that lives as long as a test
TRUST = "host all all 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")

_MAKES = """
import pickle, sys
from shardctl.fanout import Silent
from shardctl.postgres import connection, copying
clone, source, addresses, rate = pickle.loads(bytes.fromhex(sys.argv[1]))
with connection.connect(source.node, source.database, purpose="test", autocommit=True) as session:
    copying.make(clone, source, session, addresses=addresses, progress=Silent(), max_rate=rate)
"""


def make_and_kill(cloning: Cloning, rate: str = "12M") -> None:
    """Make the clone in another process, and kill that one in the middle."""
    slots.make(cloning.at_source(), cloning.clone.slot)
    given = pickle.dumps((cloning.clone, cloning.source, HERE, rate)).hex()
    with ended(subprocess.Popen([sys.executable, "-c", _MAKES, given])) as process:
        cloning.copying()
    assert process.returncode == -signal.SIGKILL


def in_background(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    """Start some work, and give its thread with what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_a_clone_is_made_once_with_its_progress_told(cloning: Cloning) -> None:
    assert cloning.state() == "absent"
    told = Recording()
    size = sources.size(cloning.at_source())
    cloning.make(progress=told, max_rate="32M")
    assert cloning.state() == "made"
    assert cloning.left() == ["c"]
    assert list(told.phases)[-2:] == ["copying", "finishing"]
    total = told.phases["copying"]
    assert 0 < told.done["copying"] <= total * 1.01
    assert abs(size - total) < total * 0.03
    made = (cloning.data / "PG_VERSION").stat().st_mtime_ns
    cloning.make()
    assert (cloning.data / "PG_VERSION").stat().st_mtime_ns == made
    assert cloning.data.stat().st_mode & 0o777 == 0o700


def test_a_directory_with_something_in_it_is_refused_and_left(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    (cloning.data / "thesis.tex").write_text("unique")
    with pytest.raises(TargetNotEmpty, match=r"is not empty: thesis\.tex"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    assert (cloning.data / "thesis.tex").read_text() == "unique"
    assert cloning.left() == ["c"]


def test_an_empty_directory_is_used(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    cloning.data.chmod(0o755)
    cloning.make()
    assert cloning.state() == "made"
    assert cloning.data.stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused(cloning: Cloning) -> None:
    cloning.data.parent.mkdir()
    cloning.data.symlink_to("elsewhere")
    with pytest.raises(CloneRefused, match="is a symbolic link"):
        cloning.make()


def test_the_copy_of_a_killed_shardctl_is_gone_on_with(cloning: Cloning) -> None:
    make_and_kill(cloning)
    workers = cloning.workers()
    assert cloning.state() == "copying"
    cloning.at_source().execute("INSERT INTO photos VALUES (-1, 'while nobody watched')")
    cloning.make()
    assert cloning.state() == "made"
    assert workers
    assert cloning.workers() == []
    assert cloning.left() == ["c"]
    standby.start(cloning.clone)
    assert photos(cloning.follow()) == photos(cloning.at_source())


def test_a_copy_that_was_killed_with_its_shardctl_is_made_anew(cloning: Cloning) -> None:
    make_and_kill(cloning)
    for pid in cloning.workers():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: cloning.state() == "broken")
    cloning.make()
    assert cloning.state() == "made"
    assert cloning.left() == ["c"]


def test_a_shell_in_the_directory_of_the_copy_is_not_taken_for_it(cloning: Cloning) -> None:
    make_and_kill(cloning)
    command = ["sleep", "60"]
    with ended(subprocess.Popen(command, cwd=cloning.clone.work)) as looker:
        assert clones.remove(cloning.clone)
        assert cloning.left() == []
        assert cloning.workers() == []
        assert looker.poll() is None


def test_a_killed_pg_basebackup_is_an_error_that_leaves_nothing(cloning: Cloning) -> None:
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW))
    cloning.copying()
    os.kill(cloning.program(), signal.SIGKILL)
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert cloning.left() == []
    wait_for(lambda: cloning.workers() == [])
    cloning.make()
    assert cloning.state() == "made"


def test_a_stop_ends_the_copy_and_deletes_it(cloning: Cloning) -> None:
    stop = threading.Event()
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW, stop=stop))
    cloning.copying()
    stop.set()
    thread.join()
    assert isinstance(raised[0], Interrupted)
    assert raised[0].hint
    assert cloning.left() == []
    assert cloning.workers() == []


def test_an_interrupt_ends_the_copy_and_deletes_it(cloning: Cloning) -> None:
    class Interrupting(Silent):
        def advance(self, key: str, done: int = 1) -> None:  # noqa: ARG002  # Progress has them
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cloning.make(max_rate=SLOW, progress=Interrupting())
    assert cloning.left() == []
    assert cloning.workers() == []


def test_a_source_that_is_killed_is_an_error_and_can_be_cloned_later(
    cloning_spare: Cloning,
) -> None:
    cloning = cloning_spare
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOW))
    cloning.copying()
    cloning.server.stop("immediate")
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert "terminat" in raised[0].message or "closed" in raised[0].message
    assert cloning.left() == []
    cloning.server.start()
    cloning.make()
    assert cloning.state() == "made"


@needs_root
def test_a_full_disk_is_an_error_that_leaves_nothing(cloning: Cloning) -> None:
    disk = cloning.data.parent
    disk.mkdir()
    if not _mounted(disk, "size=18m,mode=755"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(CopyFailed, match="No space left on device"):
            cloning.make()
        assert cloning.left() == []
        subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)  # noqa: S607
        cloning.make()
        assert cloning.state() == "made"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)  # noqa: S607


@needs_root
def test_a_mount_point_is_refused_before_anything_is_copied(cloning: Cloning) -> None:
    cloning.data.mkdir(parents=True)
    if not _mounted(cloning.data, "size=1m"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(CloneRefused, match="is a mount point"):
            cloning.make()
    finally:
        subprocess.run(["umount", cloning.data], check=True)  # noqa: S607
    assert cloning.left() == ["c"]


def _mounted(place: Path, options: str) -> bool:
    argv = ["mount", "-t", "tmpfs", "-o", options, "shardctl-test", str(place)]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def test_the_clone_of_another_move_is_refused_and_left(cloning: Cloning) -> None:
    make_and_kill(cloning)
    mine, other = cloning.move, "0badc0de"
    cloning.move = other
    cloning.stack.callback(slots.drop, cloning.at_source(), cloning.clone.slot)
    with pytest.raises(CloneOfAnother, match=f"belongs to move {mine}"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    with pytest.raises(CloneOfAnother):
        clones.discard(cloning.clone)
    cloning.move = mine
    assert cloning.state() == "copying"
    cloning.make()
    cloning.move = other
    with pytest.raises(CloneOfAnother, match=f"belongs to move {mine}"):
        cloning.make()
    assert not clones.remove(cloning.clone)
    cloning.move = mine
    assert cloning.state() == "made"
    assert cloning.ask(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '{mine}'") == 1


def test_a_running_clone_is_stopped_and_removed_with_its_log(cloning: Cloning) -> None:
    target = cloning.start()
    assert cloning.left() == ["c", "c.log"]
    assert clones.remove(cloning.clone)
    assert cloning.left() == []
    assert not cloning.clone.server.running()
    with pytest.raises(psycopg.OperationalError):
        target.execute("SELECT 1")
    assert not clones.remove(cloning.clone)


def test_a_log_that_was_there_before_stays(cloning: Cloning) -> None:
    cloning.data.parent.mkdir()
    log = cloning.clone.server.log
    log.write_text("of a server that was here before\n")
    if (account := cloning.clone.server.account) is not None:
        os.chown(log, pwd.getpwnam(account).pw_uid, -1)
    # A source that was a clone itself, where no log was.
    mark = cloning.server.server.data_directory / clones.MARK
    mark.mkdir()
    (mark / "log-is-new").touch()
    try:
        cloning.make()
    finally:
        shutil.rmtree(mark)
    standby.start(cloning.clone)
    clones.remove(cloning.clone)
    assert cloning.left() == ["c.log"]
    assert log.read_text().startswith("of a server that was here before\n")


def test_what_a_killed_making_or_removing_leaves_is_deleted_by_the_next(cloning: Cloning) -> None:
    trash = cloning.data.with_name(f"c.clone.{cloning.move}")
    (trash / "base").mkdir(parents=True)
    assert not clones.remove(cloning.clone)
    assert cloning.left() == []
    (trash / "base").mkdir(parents=True)
    cloning.make()
    assert cloning.left() == ["c"]
    # Killed when the copy has its name, and the rest is not deleted yet.
    cloning.clone.work.mkdir()
    (cloning.clone.work / "move").write_text(cloning.move)
    cloning.make()
    assert cloning.left() == ["c"]


def test_a_promoted_clone_is_not_deleted(cloning: Cloning) -> None:
    target = cloning.start()
    cloning.promote(target)
    with pytest.raises(CloneServes, match="was promoted, so it is not deleted"):
        clones.remove(cloning.clone)
    cloning.open_up(target)
    with pytest.raises(CloneServes, match="was opened up, so it is not deleted"):
        clones.remove(cloning.clone)
    clones.keep(cloning.clone)
    clones.keep(cloning.clone)
    assert not clones.remove(cloning.clone)
    assert target.execute("SELECT 1").fetchone() == (1,)


def test_tablespaces_are_refused(cloning_spare: Cloning, server_directory: Path) -> None:
    place = server_directory / "far"
    place.mkdir()
    if (account := accounts.server_account(None)) is not None:
        os.chown(place, pwd.getpwnam(account).pw_uid, -1)
    session = cloning_spare.at_source()
    session.execute(f"CREATE TABLESPACE far LOCATION '{place}'")
    try:
        with pytest.raises(TablespacesRefused, match=r"has tablespaces.*: far"):
            cloning_spare.make()
    finally:
        session.execute("DROP TABLESPACE far")
    assert cloning_spare.left() == []


@pytest.mark.parametrize(
    ("change", "reason", "hint"),
    [
        (
            {"replication_user": "nobody"},
            'role "nobody" does not exist',
            "CREATE ROLE nobody REPLICATION LOGIN",
        ),
        ({"replication_user": "visitor"}, "role", "ALTER ROLE visitor REPLICATION LOGIN"),
    ],
)
def test_a_user_that_may_not_replicate_is_refused(
    cloning: Cloning, change: dict[str, str], reason: str, hint: str
) -> None:
    cloning = dataclasses.replace(cloning, **change)  # type: ignore[arg-type]  # texts, all
    with pytest.raises(ReplicationRefused, match=reason) as refused:
        cloning.make()
    assert hint in refused.value.hint
    assert cloning.left() == []


def test_a_source_whose_rules_forbid_replication_is_refused_with_the_line_to_add(
    cloning_spare: Cloning,
) -> None:
    with (
        rules(cloning_spare.server, "host all all 127.0.0.1/32 trust\n"),
        pytest.raises(ReplicationRefused, match=r"no pg_hba\.conf entry") as refused,
    ):
        cloning_spare.make()
    assert "host replication postgres 127.0.0.1 scram-sha-256" in refused.value.hint


def test_a_source_that_lets_shardctl_in_from_elsewhere_only_is_refused(cloning: Cloning) -> None:
    with pytest.raises(NoWayIn, match=r"does not let postgres in from 192\.0\.2\.7"):
        cloning.make(addresses=["192.0.2.7"])
    assert cloning.left() == []


def test_rules_in_files_that_are_not_cloned_are_refused(cloning_spare: Cloning) -> None:
    names = cloning_spare.directory / "names"
    names.write_text("visitor\n")
    with (
        rules(cloning_spare.server, f"{TRUST}host all @{names} 127.0.0.1/32 trust\n"),
        pytest.raises(FilesElsewhere, match=f"does not get: {names}"),
    ):
        cloning_spare.make()


def test_an_address_that_leads_to_another_server_is_refused(
    cloning: Cloning, spare_source: PgServer
) -> None:
    session = cloning.at_source()
    node = dataclasses.replace(cloning.source.node, port=spare_source.port)
    source = dataclasses.replace(cloning.source, node=node)
    with pytest.raises(SourceElsewhere, match="is another server for the host of node c"):
        copying.make(cloning.clone, source, session, addresses=HERE, progress=Silent())


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
        with pytest.raises(ReplicationRefused, match="no password supplied") as refused:
            cloning.make()
        assert "~/.pgpass" in refused.value.hint
        cloning.options = {"passfile": str(passfile)}
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


def test_a_source_with_its_configuration_elsewhere_is_cloned_whole(
    cloning_spare: Cloning,
) -> None:
    """As on Debian, where /etc has it."""
    cloning, server = cloning_spare, cloning_spare.server
    data, etc = server.server.data_directory, server.server.data_directory.with_name("etc")
    etc.mkdir()
    names = ("postgresql.conf", "pg_hba.conf", "pg_ident.conf")
    server.stop()
    for name in names:
        (data / name).rename(etc / name)
    conf = etc / "postgresql.conf"
    before = conf.read_text()
    conf.write_text(
        f"{before}\ndata_directory = '{data}'\nhba_file = '{etc}/pg_hba.conf'\n"
        f"ident_file = '{etc}/pg_ident.conf'\nexternal_pid_file = '{etc}/pid'\n"
        "include_dir 'conf.d'\n"
    )
    (etc / "conf.d").mkdir()
    (etc / "conf.d" / "work.conf").write_text("work_mem = 7MB\nstatement_timeout = '11min'\n")
    if (account := server.server.account) is not None:
        for one in (etc, *etc.rglob("*")):
            os.chown(one, pwd.getpwnam(account).pw_uid, -1)
    elsewhere = dataclasses.replace(server.server, data_directory=etc)
    try:
        elsewhere._pg_ctl("start", "-w", "-l", str(server.server.log))
        target = cloning.start()
        wanted = {"work_mem": "7MB", "cluster_name": "c", "port": str(cloning.port)}
        assert {name: _shown(target, name) for name in wanted} == wanted
        assert _shown(target, "data_directory") == str(cloning.data)
        cloning.promote(target)
        cloning.open_up(target)
        with psycopg.connect(
            host="127.0.0.1", port=cloning.port, user="visitor", dbname="postgres"
        ) as visitor:
            # Shardctl's own sessions have none, and must not hide it from the clone.
            assert _shown(visitor, "statement_timeout") == "11min"
    finally:
        server.server._pg_ctl("stop", "-m", "immediate", "-w")
        conf.write_text(before)
        for name in names:
            (etc / name).rename(data / name)
        server.start()


def _shown(session: psycopg.Connection[tuple[object, ...]], name: str) -> object:
    row = session.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return row[0]


def test_a_slot_is_made_and_dropped_once(cloning: Cloning) -> None:
    session, name = cloning.at_source(), cloning.clone.slot
    assert slots.make(session, name)
    assert not slots.make(session, name)
    row = session.execute(
        "SELECT slot_type, restart_lsn IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s",
        [name],
    ).fetchone()
    assert row == ("physical", True)
    assert slots.drop(session, name)
    assert not slots.drop(session, name)


def test_a_slot_in_use_is_dropped_only_from_its_own_user(cloning: Cloning) -> None:
    session, name = cloning.at_source(), cloning.clone.slot
    slots.make(session, name)
    program = cloning.clone.server.binaries.program("pg_receivewal")
    argv = [program, "-D", str(cloning.directory), "--slot", name, "--no-password", "-d"]
    with ended(subprocess.Popen([*argv, cloning.source.conninfo("somebody")])) as stranger:
        wait_for(lambda: cloning.ask(f"{_ACTIVE}'{name}'"))
        with pytest.raises(SlotTaken, match="is in use by somebody"):
            slots.drop(session, name, patience_s=1)
        assert stranger.poll() is None
        assert cloning.ask(f"{_ACTIVE}'{name}'")
    wait_for(lambda: not cloning.ask(f"{_ACTIVE}'{name}'"))
    with ended(subprocess.Popen([*argv, cloning.source.conninfo(name), "--no-loop"])) as own:
        wait_for(lambda: cloning.ask(f"{_ACTIVE}'{name}'"))
        assert slots.drop(session, name)
        assert own.wait(10) != 0


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process that would not by itself, whatever becomes of the test."""
    with process:
        try:
            yield process
        finally:
            process.kill()


_ACTIVE = "SELECT active FROM pg_replication_slots WHERE slot_name = "


def test_a_slot_that_has_lost_its_wal_is_made_anew(cloning_spare: Cloning) -> None:
    session, name = cloning_spare.at_source(), cloning_spare.clone.slot
    session.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    session.execute("SELECT pg_reload_conf()")
    try:
        slots.make(session, name)
        for _ in range(4):
            session.execute("CREATE TABLE wal (); DROP TABLE wal")
            session.execute("SELECT pg_switch_wal()")
        session.execute("CHECKPOINT")
        status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{name}'"
        assert cloning_spare.ask(status) == "lost"
        assert slots.make(session, name)
        assert cloning_spare.ask(status) == "reserved"
    finally:
        session.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        session.execute("SELECT pg_reload_conf()")


def test_a_slot_of_another_kind_is_left(cloning_spare: Cloning) -> None:
    session, name = cloning_spare.at_source(), cloning_spare.clone.slot
    session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with pytest.raises(SlotTaken, match="is a logical one"):
        slots.make(session, name)
