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
from psycopg import sql

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.moves.preflight import directory as directories
from shardctl.moves.preflight import libraries as preflight_libraries
from shardctl.moves.preflight import login, parameters
from shardctl.moves.preflight import server as servers
from shardctl.moves.preflight import target as targets
from shardctl.moves.preflight.target import PROGRAMS, Machine
from shardctl.postgres import binaries
from shardctl.topology.model import Control, Ssh
from tests.fixtures.servers.postgres import PgServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.moves.preflight.directory import Directory
    from tests.fixtures.moves.preflight import Movable


def place(preflight_fleet: Movable) -> Path:
    assert preflight_fleet.target.data_directory is not None
    return preflight_fleet.target.data_directory


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


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"shared_bufers": "64MB"}, 'unrecognized configuration parameter "shared_bufers"'),
        ({"work_mem": "lots"}, 'invalid value for parameter "work_mem": "lots"'),
        ({"max_connections": "0"}, '0 is outside the valid range for parameter "max_connections"'),
        ({"timezone": "Mars/Base"}, 'invalid value for parameter "TimeZone": "Mars/Base"'),
        ({"lc_messages": "de_AT.none"}, 'invalid value for parameter "lc_messages"'),
    ],
)
def test_settings_that_the_server_refuses(
    preflight_fleet: Movable, settings: dict[str, str], told: str
) -> None:
    context = preflight_fleet.on_this_machine(preflight_fleet.topology)
    account = preflight_fleet.server().account
    context.found[targets.look] = Machine(Local(), account)

    def look(given: dict[str, str]) -> list[str] | None:
        preflight_fleet.change(settings=given)
        context.topology = preflight_fleet.topology
        return parameters.look(context)

    fine = {"Work_Mem": "64MB", "log_line_prefix": "%m it's ", "own.name": "x", "ssl": "on"}
    assert look(fine) == []
    refused = look(fine | settings)
    assert refused is not None
    assert len(refused) == 1
    assert refused[0].startswith(told)


def test_no_data_directory(preflight_fleet: Movable) -> None:
    preflight_fleet.change(data_directory=None)
    assert "node c: it has no data_directory" in preflight_fleet.only_target("no_data_directory")


def test_a_host_that_cannot_be_worked_on(preflight_fleet: Movable) -> None:
    preflight_fleet.change(ssh=Ssh("nosuch.invalid", None, None, None, accept_new=False))
    told = next(iter(preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()).values()))
    assert "host nosuch.invalid cannot be reached by ssh" in told


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        ("10.99.99.99", "10.99.99.99, but its host has no address 10.99.99.99"),
        ("nosuch.invalid", "nosuch.invalid, but its host cannot resolve it"),
    ],
)
def test_addresses_at_which_its_host_cannot_listen(
    preflight_fleet: Movable, addresses: str, told: str
) -> None:
    preflight_fleet.change(settings={"Listen_Addresses": addresses})
    said = preflight_fleet.only_target("listen_addresses")
    assert f"node c: its server would listen on {told}: the clone would not start" in said
    preflight_fleet.change(settings={"listen_addresses": f"{addresses}, 127.0.0.1"})
    assert preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()) == {}


def test_an_os_user_that_does_not_exist(preflight_fleet: Movable) -> None:
    preflight_fleet.change(os_user="nobody-of-this-name")
    assert "no such user" in preflight_fleet.only_target("os_user_refused")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("no-such-command", "not found"),
        ("echo sudo: no >&2; exit 1", "no"),
        ("echo Error: Cluster is disabled >&2; exit 1", "code 1; expected 0 (server running)"),
        ("echo /srv/other is not accessible; exit 1", "/srv/other is not accessible"),
    ],
)
def test_commands_of_its_own_that_cannot_be_run(
    preflight_fleet: Movable, status: str, told: str
) -> None:
    preflight_fleet.change(control=Control(start=None, stop=None, reload=None, status=status))
    assert told in preflight_fleet.only_target("control")
    misses = f"echo {place(preflight_fleet)} is not accessible >&2; exit 1"
    for fine in ("exit 0", "exit 3", misses):
        preflight_fleet.change(control=Control(start=None, stop=None, reload=None, status=fine))
        assert preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()) == {}
    preflight_fleet.make(place(preflight_fleet))
    assert preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()) == {}
    (place(preflight_fleet) / "PG_VERSION").write_text("15\n")
    said = preflight_fleet.beside_fit(target=preflight_fleet.look_at_target())
    assert "expected 0" in said["control"], "it should know of what is there"


def test_root_as_the_servers_user(preflight_fleet: Movable) -> None:
    preflight_fleet.change(os_user="root")
    told = next(iter(preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()).values()))
    assert told.startswith("node c: ")
    assert "root: PostgreSQL does not run as root\n" in told
    assert "set os_user of the node to an ordinary user of this machine" in told


def test_programs_of_another_version(preflight_fleet: Movable, server_directory: Path) -> None:
    other = "echo 'postgres (PostgreSQL) 99.1'"
    folder = programs(
        server_directory / "bin",
        postgres=other, initdb="", pg_ctl="", pg_basebackup="",
    )  # fmt: skip
    preflight_fleet.change(bin_directory=folder)
    told = preflight_fleet.only_target("version")
    assert f"found 99 in {folder}" in told
    major = preflight_fleet.server().binaries.major
    fitting = binaries.of_major(major)
    assert fitting is not None
    assert f"set bin_directory of node c to {fitting.directory}" in told


def test_programs_that_are_missing(preflight_fleet: Movable, server_directory: Path) -> None:
    folder = programs(server_directory / "bin")
    preflight_fleet.change(bin_directory=folder)
    assert "lacks postgres, initdb, pg_ctl" in preflight_fleet.only_target("host")
    for name in binaries.PROGRAMS:
        (folder / name).symlink_to(preflight_fleet.server().binaries.program(name))
    told = preflight_fleet.only_target("programs")
    assert "has no working pg_basebackup, which a clone needs" in told


def test_a_directory_that_its_user_may_not_enter(
    preflight_fleet: Movable, server_directory: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only for root somebody else runs the server")
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    preflight_fleet.change(data_directory=closed / "deeper" / "data")
    told = preflight_fleet.only_target("directory_closed")
    assert f"{accounts.server_account(None)} may not enter {closed}" in told


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


def test_what_is_seen_of_a_place_for_a_clone(preflight_fleet: Movable) -> None:
    there = place(preflight_fleet)

    def look(path: Path) -> Directory:
        return look_at_place(preflight_fleet, path)

    seen = look(there)
    assert (seen.kind, seen.leftover, seen.seen) == ("absent", False, str(there.parent))
    assert seen.free_bytes is not None
    preflight_fleet.make(there)
    assert look(there).kind == "empty"
    (there / "photo.jpg").touch()
    assert (look(there).kind, look(there).holds) == ("other", ("photo.jpg",))
    preflight_fleet.make(there.with_name("c.clone"))
    assert look(there).leftover
    file, link = there.with_name("file"), there.with_name("link")
    file.touch()
    link.symlink_to(there)
    assert (look(file).kind, look(link).kind) == ("file", "link")


def test_what_is_seen_of_a_small_disk_and_where_it_is_mounted(
    preflight_fleet: Movable, small_disk: Path
) -> None:
    preflight_fleet.change(data_directory=small_disk / "below" / "data")
    told = preflight_fleet.only_target("disk")
    assert f"node c: {small_disk} has 8 MB free, but a clone needs 1,0" in told
    assert "and max_wal_size = 1024 MB" in told
    assert look_at_place(preflight_fleet, small_disk).kind == "mount"


def look_at_place(preflight_fleet: Movable, path: Path) -> Directory:
    return directories.look_at(Local(), path, account=preflight_fleet.server().account)


def test_what_is_in_the_clones_place_is_refused(preflight_fleet: Movable) -> None:
    preflight_fleet.clone(place(preflight_fleet))
    told = preflight_fleet.only_target("directory_not_empty")
    assert f"{place(preflight_fleet)} is not empty: " in told
    with preflight_fleet.running(place(preflight_fleet)):
        told = preflight_fleet.refused()["port_taken"]
        assert f"listens at 127.0.0.1:{preflight_fleet.target.port}" in told


def test_a_port_that_something_else_has(preflight_fleet: Movable) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _HangsUp) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            preflight_fleet.change(port=other.server_address[1])
            told = preflight_fleet.only_target("port_taken")
        finally:
            other.shutdown()
    port = preflight_fleet.target.port
    assert f"(pid {os.getpid()}) listens at 127.0.0.1:{port}" in told


class _HangsUp(socketserver.BaseRequestHandler):
    """Speaks no language that PostgreSQL's clients know."""

    def handle(self) -> None:
        self.request.sendall(b"220 ready\r\n")


def test_libraries_without_which_the_clone_would_not_start(
    preflight_fleet: Movable, server_directory: Path
) -> None:
    own = server_directory / "it's"
    own.mkdir(mode=0o755)
    installed = preflight_fleet.server().binaries.directory.parent
    shutil.copy(next(installed.rglob("auth_delay.so")), own)
    there = ["auto_explain", "$libdir/auth_delay", f"{own}/auth_delay", f"{own}/auth_delay.so"]
    preflight_fleet.change(
        settings={"shared_preload_libraries": ", ".join(map('"{}"'.format, there))}
    )
    assert preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()) == {}
    preflight_fleet.change(
        settings={"Shared_Preload_Libraries": f"nosuch, auto_explain,{own}/other"}
    )
    told = preflight_fleet.only_target("preload_libraries")
    assert (
        f"node c: its host lacks nosuch, {own}/other, which shared_preload_libraries names" in told
    )
    assert "`settings: {shared_preload_libraries: ...}`" in told


def test_libraries_that_the_source_loads(preflight_fleet: Movable) -> None:
    assert preflight_fleet.fit is not None
    source = preflight_fleet.fit.need(servers.look)
    assert source.settings["shared_preload_libraries"] == ""
    server = preflight_fleet.server()

    def lacking(**settings: str) -> object:
        found = {**source.settings, "shared_preload_libraries": "auto_explain, nosuch"}
        return preflight_libraries.missing(
            preflight_fleet.target,
            found | settings,
            server.binaries,
            Machine(Local(), server.account),
        )

    assert lacking() == ["nosuch"]
    assert lacking(dynamic_library_path="/nowhere") == ["auto_explain", "nosuch"]
    assert lacking(dynamic_library_path="/nowhere:$libdir") == ["nosuch"]
    preflight_fleet.change(settings={"shared_preload_libraries": ""})
    assert lacking() == []


@pytest.mark.parametrize("database", ["preflight", "postgres"])
def test_libraries_of_functions_in_any_database(
    preflight_fleet: Movable, server_directory: Path, database: str
) -> None:
    own = server_directory / "own.so"
    installed = preflight_fleet.server().binaries.directory.parent
    shutil.copy(next(installed.rglob("plpgsql.so")), own)
    own.chmod(0o755)
    there = PgServer(preflight_fleet.server())
    with there.connect(database) as session:
        session.execute(
            sql.SQL("CREATE FUNCTION public.own(oid) RETURNS void LANGUAGE c AS {}, {}").format(
                str(own), "plpgsql_validator"
            )
        )
        try:
            assert preflight_fleet.check().source_bytes
            own.unlink()
            told = preflight_fleet.only("extension_libraries")
        finally:
            session.execute("DROP FUNCTION public.own(oid)")
    assert f"node c: its host lacks libraries that functions of node a need: {own}" in told
    assert "(function public.own(oid))" in told


def test_libraries_that_cannot_be_looked_for(
    preflight_fleet: Movable, server_directory: Path
) -> None:
    real = preflight_fleet.server().binaries
    said = {name: f'exec {real.program(name)} "$@"' for name in (*binaries.PROGRAMS, *PROGRAMS)}
    preflight_fleet.change(bin_directory=programs(server_directory / "bin", **said))
    told = "node c: not checked: whether it has the shared_preload_libraries"
    notes = preflight_fleet.target_notes()
    assert told not in notes
    assert "node c: not checked: whether it has the extensions' libraries" in notes
    preflight_fleet.change(settings={"shared_preload_libraries": "nosuch"})
    assert told in preflight_fleet.target_notes()


def test_a_role_that_may_not_replicate(preflight_fleet: Movable) -> None:
    topology = preflight_fleet.topology
    topology = dataclasses.replace(
        topology, database=dataclasses.replace(topology.database, replication_user="plain")
    )
    with preflight_fleet.having("CREATE ROLE plain LOGIN", "DROP ROLE plain"):
        told = preflight_fleet.only_target("replication_login", topology)
    assert "plain cannot log in from its host to node a for replication: " in told
    assert "must be superuser or replication role" in told
    assert "to its pg_hba.conf" in told


def test_the_login_is_tried_as_copy_and_standby_will_log_in(
    preflight_fleet: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = preflight_fleet.topology
    options = {**topology.database.options, "options": "-c role=nobody_of_this_name"}
    database = dataclasses.replace(topology.database, options=options)
    monkeypatch.setenv("PGOPTIONS", "-c nothing.of=this -c role=nobody_of_this_name")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    changed = dataclasses.replace(topology, database=database)
    assert login.try_replication(preflight_fleet.on_this_machine(changed)) is None


def test_a_login_that_cannot_be_tried(
    preflight_fleet: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    there = preflight_fleet.server().binaries
    folder = programs(server_directory / "bin")
    for name in (*binaries.PROGRAMS, "pg_basebackup"):
        (folder / name).symlink_to(there.program(name))
    for name in ("sh", "date", "df", "tail", "stat", "ls", "dirname", "getconf"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    preflight_fleet.change(bin_directory=folder)
    monkeypatch.setenv("PATH", str(folder))
    assert (
        "node c: not checked: its replication login to the source: its host has no psql"
        in preflight_fleet.target_notes()
    )


def test_a_host_whose_clock_is_wrong_or_tells_whole_seconds(
    preflight_fleet: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    date = shutil.which("date")
    late = f'exec {date} -d "3 seconds ago" "$@"'
    with monkeypatch.context() as patch:
        first_in_path(patch, programs(server_directory / "late", date=late))
        told = preflight_fleet.only_target("clock_skew")
    assert "the host of node c: its clock is " in told
    assert " s behind the clock of shardctl's machine; a move allows at most 0.5 s" in told
    first_in_path(monkeypatch, programs(server_directory / "whole", date=f"echo $({date} +%s).%N"))
    assert preflight_fleet.beside_fit(target=preflight_fleet.look_at_target()) == {}


def test_hosts_with_other_c_libraries(
    preflight_fleet: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    seen = server_directory / "seen"
    other = f"[ -e {seen} ] && echo glibc 2.17 && exit; : > {seen}; echo glibc 2.36"
    first_in_path(monkeypatch, programs(server_directory / "bin", getconf=other))
    assert preflight_fleet.look_at_target().need(targets.libc) == ("glibc 2.36", "glibc 2.17")
    seen.unlink()
    with preflight_fleet.having(
        "CREATE COLLATION public.german (provider = icu, locale = 'de');"
        "CREATE TABLE shard2.y (name text COLLATE public.german)",
        "DROP TABLE shard2.y; DROP COLLATION public.german",
    ):
        told = preflight_fleet.only("libc")
    assert "its host has glibc 2.17, but the source's host has glibc 2.36" in told
