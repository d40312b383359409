"""Targets onto which preflight lets nothing be cloned: each cause is made."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socketserver
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.moves import preflight_libraries, preflight_source
from shardctl.moves import preflight_login as login
from shardctl.moves.preflight_target import PROGRAMS
from shardctl.postgres import binaries
from shardctl.topology.model import Control, Ssh
from tests.fixtures.servers import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.preflights import Movable


def place(movable: Movable) -> Path:
    assert movable.target.data_directory is not None
    return movable.target.data_directory


def programs(directory: Path, **said: str) -> Path:
    """Make programs that say something and end with code 0."""
    directory.mkdir()
    directory.chmod(0o755)
    for name, text in said.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return directory


def first_in_path(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_no_data_directory(movable: Movable) -> None:
    movable.change(data_directory=None)
    assert "node c: it has no data_directory" in movable.only("no_data_directory")


def test_a_host_that_cannot_be_worked_on(movable: Movable) -> None:
    movable.change(ssh=Ssh("nosuch.invalid", None, None, None, accept_new=False))
    told = next(iter(movable.refused().values()))
    assert "host nosuch.invalid cannot be reached by ssh" in told


def test_an_os_user_that_does_not_exist(movable: Movable) -> None:
    movable.change(os_user="nobody-of-this-name")
    assert "there is no such user" in movable.only("OsUserRefused")


@pytest.mark.parametrize(
    ("status", "told"), [("no-such-command", "not found"), ("echo sudo: no >&2; exit 1", "no")]
)
def test_commands_of_its_own_that_cannot_be_run(movable: Movable, status: str, told: str) -> None:
    movable.change(control=Control(start=None, stop=None, reload=None, status=status))
    assert told in movable.only("control")
    movable.change(control=Control(start=None, stop=None, reload=None, status="exit 3"))
    movable.check()


def test_root_as_the_servers_user(movable: Movable) -> None:
    movable.change(os_user="root")
    told = next(iter(movable.refused().values()))
    assert told.startswith("node c: ")
    assert "root: PostgreSQL refuses root\n" in told
    assert "name an ordinary user of this machine as os_user of the node" in told


def test_programs_of_another_version(movable: Movable, server_directory: Path) -> None:
    other = "echo 'postgres (PostgreSQL) 99.1'"
    folder = programs(
        server_directory / "bin",
        postgres=other, initdb="", pg_ctl="", pg_basebackup="", pg_controldata="",
    )  # fmt: skip
    movable.change(bin_directory=folder)
    told = movable.only("version")
    assert f"node c: {folder} has PostgreSQL 99, and the source is" in told
    major = movable.server().binaries.major
    fitting = binaries.of_major(major)
    assert fitting is not None
    assert f"give node c bin_directory: {fitting.directory}" in told


def test_programs_that_are_missing(movable: Movable, server_directory: Path) -> None:
    folder = programs(server_directory / "bin")
    movable.change(bin_directory=folder)
    assert "lacks postgres, initdb, pg_ctl" in movable.only("host")
    for name in binaries.PROGRAMS:
        (folder / name).symlink_to(movable.server().binaries.program(name))
    told = movable.only("programs")
    assert "has no pg_basebackup that runs, which a clone needs" in told


def test_a_directory_with_something_else_in_it(movable: Movable) -> None:
    movable.make(place(movable))
    movable.check()
    (place(movable) / "photo.jpg").touch()
    told = movable.only("directory_not_empty")
    assert f"{place(movable)} is not empty, and no server's: photo.jpg" in told


def test_a_place_that_is_no_directory(movable: Movable, server_directory: Path) -> None:
    place(movable).touch()
    assert "is no directory" in movable.only("directory_unfit")
    place(movable).unlink()
    (server_directory / "elsewhere").mkdir()
    place(movable).symlink_to(server_directory / "elsewhere")
    assert "is a symbolic link" in movable.only("directory_unfit")


def test_a_directory_that_its_user_may_not_enter(movable: Movable, server_directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only for root somebody else runs the server")
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    movable.change(data_directory=closed / "deeper" / "data")
    told = movable.only("directory_closed")
    assert f"{accounts.server_account(None)} may not go through {closed}" in told


@pytest.fixture
def small_disk(server_directory: Path) -> Iterator[Path]:
    """Give a file system with hardly any room."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    path = server_directory / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0755", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)  # noqa: S607


def test_a_disk_without_room(movable: Movable, small_disk: Path) -> None:
    movable.change(data_directory=small_disk / "below" / "data")
    told = movable.only("disk")
    assert f"node c: {small_disk} has 8 MB free, and a clone needs 1,0" in told
    assert "and max_wal_size = 1024 MB" in told


def test_a_mount_point(movable: Movable, small_disk: Path) -> None:
    movable.change(data_directory=small_disk)
    told = movable.refused()
    assert set(told) == {"directory_unfit", "disk"}
    assert "is a mount point" in told["directory_unfit"]
    assert "such as one below it" in told["directory_unfit"]


def test_what_an_earlier_clone_has_left(movable: Movable) -> None:
    movable.make(place(movable).with_name("c.clone"))
    assert f"{place(movable)}.clone is there" in movable.only("leftover_clone")


def test_an_old_clone_of_this_cluster_is_moved_aside(movable: Movable) -> None:
    movable.clone(place(movable))
    assert f"{place(movable)} is moved aside: it has an old clone" in movable.notes()


def test_a_stopped_standby_is_not_moved_aside(movable: Movable) -> None:
    movable.clone(place(movable), standby=True)
    with movable.running(place(movable)) as there:
        there.server.stop()
        told = movable.only("directory_standby")
    assert f"{place(movable)} has a stopped standby's data (shut down in recovery)" in told
    with movable.running(place(movable)):
        pass  # it ends at once, as in a crash
    assert "(in archive recovery)" in movable.only("directory_standby")


def test_somebody_elses_stopped_server(movable: Movable) -> None:
    there = movable.server()
    other = dataclasses.replace(there, name="other", data_directory=place(movable))
    other.init(superuser=SUPERUSER)
    told = movable.only("directory_foreign")
    assert "has a stopped server's data, and it is no clone of this cluster's servers" in told


def test_the_directory_of_a_server_that_runs(movable: Movable) -> None:
    movable.change(data_directory=movable.server().data_directory)
    told = movable.only("directory_in_use")
    assert "a server runs in" in told
    assert f"on another port than the topology's {movable.target.port}" in told


def test_a_running_server_that_is_not_empty(movable: Movable, server_directory: Path) -> None:
    # It has the shards of node a, whose copy it is, and is told so by its own row too.
    movable.clone(place(movable))
    with movable.running(place(movable)) as there:
        told = movable.refused()
        assert set(told) == {"NodeUnfit", "target_has_shards"}
        assert "shards live there: shard0, shard1, shard2, shard3" in told["target_has_shards"]
        with there.connect() as session:
            session.execute("DROP DATABASE preflight WITH (FORCE)")
            notes = movable.notes()
            assert "the empty server of node c is stopped, and its data directory moved" in notes
            session.execute("CREATE TABLE accounts (id int)")
        data = movable.only("target_has_data")
        assert "database postgres has tables, which a clone would replace: public.accounts" in data
        movable.change(data_directory=server_directory / "other")
        told = movable.refused()
        assert f"runs in {server_directory / 'c'}" in told["other_directory"]


def test_a_standby_in_its_place(movable: Movable) -> None:
    movable.clone(place(movable), standby=True)
    with movable.running(place(movable)):
        movable.choose(ignore_standby=True)
        told = movable.refused()
        assert "a standby runs there" in told["target_standby"]


def test_a_port_that_something_else_has(movable: Movable) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _HangsUp) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            movable.change(port=other.server_address[1])
            told = movable.only("port_taken")
        finally:
            other.shutdown()
    port = movable.target.port
    assert f"(pid {os.getpid()}) listens at 127.0.0.1:{port} and cannot be looked into" in told


class _HangsUp(socketserver.BaseRequestHandler):
    """Speaks no language that PostgreSQL's clients know."""

    def handle(self) -> None:
        self.request.sendall(b"220 ready\r\n")


def test_settings_with_which_no_standby_starts(movable: Movable) -> None:
    movable.change(settings={"max_connections": "50", "Max_Prepared_Transactions": "0"})
    told = movable.only("settings")
    assert "settings: max_connections = 50, and the source has 100" in told
    assert "settings: max_prepared_transactions = 0, and the source has 4" in told
    movable.change(settings={"max_connections": "200", "work_mem": "8MB"})
    movable.check()
    movable.change(settings={"max_connections": "many", "wal_level": "minimal"})
    told = movable.only("settings")
    assert "max_connections = many" in told
    assert "wal_level = minimal" in told


def test_libraries_without_which_the_clone_would_not_start(
    movable: Movable, server_directory: Path
) -> None:
    own = server_directory / "it's"
    own.mkdir(mode=0o755)
    installed = movable.server().binaries.directory.parent
    shutil.copy(next(installed.rglob("auth_delay.so")), own)
    there = ["auto_explain", "$libdir/auth_delay", f"{own}/auth_delay", f"{own}/auth_delay.so"]
    movable.change(settings={"shared_preload_libraries": ", ".join(map('"{}"'.format, there))})
    movable.check()
    movable.change(settings={"Shared_Preload_Libraries": f"nosuch, auto_explain,{own}/other"})
    told = movable.only("preload_libraries")
    assert f"node c: shared_preload_libraries names nosuch, {own}/other, which its host" in told
    assert "`settings: {shared_preload_libraries: ...}`" in told


def test_libraries_that_the_source_loads(movable: Movable) -> None:
    plan = movable.plan()
    source = preflight_source.look(movable.topology, plan, purpose="a test")
    assert source.settings["shared_preload_libraries"] == ""
    server = movable.server()

    def lacking(**settings: str) -> object:
        found = {**source.settings, "shared_preload_libraries": "auto_explain, nosuch"}
        return preflight_libraries.look(
            movable.target, found | settings, server.binaries, Local(), server.account
        )

    assert lacking() == ["nosuch"]
    assert lacking(dynamic_library_path="/nowhere") == ["auto_explain", "nosuch"]
    assert lacking(dynamic_library_path="/nowhere:$libdir") == ["nosuch"]
    movable.change(settings={"shared_preload_libraries": ""})
    assert lacking() == []


def test_libraries_that_cannot_be_looked_for(movable: Movable, server_directory: Path) -> None:
    real = movable.server().binaries
    said = {name: f'exec {real.program(name)} "$@"' for name in (*binaries.PROGRAMS, *PROGRAMS)}
    movable.change(bin_directory=programs(server_directory / "bin", **said))
    assert "not looked whether" not in movable.notes()
    movable.change(settings={"shared_preload_libraries": "nosuch"})
    told = "it was not looked whether node c has what shared_preload_libraries names"
    assert told in movable.notes()


def test_a_role_that_may_not_replicate(movable: Movable) -> None:
    topology = movable.topology
    topology = dataclasses.replace(
        topology, database=dataclasses.replace(topology.database, replication_user="plain")
    )
    with movable.having("CREATE ROLE plain LOGIN", "DROP ROLE plain"):
        told = movable.only("replication_login", topology)
    assert "plain cannot log in from its host to node a for replication: " in told
    assert "must be superuser or replication role" in told
    assert "pg_hba.conf of the source" in told


def test_the_login_is_tried_as_copy_and_standby_will_log_in(
    movable: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = movable.topology
    options = {**topology.database.options, "options": "-c role=nobody_of_this_name"}
    database = dataclasses.replace(topology.database, options=options)
    monkeypatch.setenv("PGOPTIONS", "-c nothing.of=this -c role=nobody_of_this_name")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    untried = login.try_replication(
        dataclasses.replace(topology, database=database),
        movable.plan(),
        Local(),
        programs=movable.server().binaries,
        account=None,
        purpose="test",
    )
    assert untried is None


def test_a_login_that_cannot_be_tried(
    movable: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    there = movable.server().binaries
    folder = programs(server_directory / "bin")
    for name in (*binaries.PROGRAMS, "pg_basebackup", "pg_controldata"):
        (folder / name).symlink_to(there.program(name))
    for name in ("sh", "date", "df", "tail", "stat", "ls", "dirname", "getconf"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    movable.change(bin_directory=folder)
    monkeypatch.setenv("PATH", str(folder))
    assert "replication login from node c was not tried: there is no psql" in movable.notes()


def test_a_host_whose_clock_is_wrong(
    movable: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    date = shutil.which("date")
    late = f'exec {date} -d "3 seconds ago" "$@"'
    first_in_path(monkeypatch, programs(server_directory / "bin", date=late))
    told = movable.only("clock_skew")
    assert "the host of node c: its clock is " in told
    assert " s behind the clock of shardctl's machine; at most 0.5 s is fit" in told


def test_a_clock_that_tells_whole_seconds(
    movable: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    date = shutil.which("date")
    first_in_path(monkeypatch, programs(server_directory / "bin", date=f"echo $({date} +%s).%N"))
    movable.check()


def test_hosts_with_other_c_libraries(
    movable: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    seen = server_directory / "seen"
    other = f"[ -e {seen} ] && echo glibc 2.17 && exit; : > {seen}; echo glibc 2.36"
    first_in_path(monkeypatch, programs(server_directory / "bin", getconf=other))
    movable.check()  # nothing there is ordered by the C library
    seen.unlink()
    with movable.having(
        "CREATE COLLATION public.german (provider = icu, locale = 'de');"
        "CREATE TABLE shard2.y (name text COLLATE public.german)",
        "DROP TABLE shard2.y; DROP COLLATION public.german",
    ):
        told = movable.only("libc")
    assert "its host has glibc 2.17, and the source's has glibc 2.36" in told
