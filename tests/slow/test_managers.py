"""A source that Patroni manages, and one with files elsewhere: what preflight finds."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.sandbox.local import LocalServer
from tests.fixtures.fleets.fleet import PHOTOS
from tests.fixtures.fleets.pooled import PooledFleet
from tests.fixtures.moves.preflight import Movable
from tests.fixtures.processes import ended
from tests.fixtures.servers.certificates import Authority, own
from tests.fixtures.servers.postgres import SUPERUSER, PgServer, free_ports, local_node, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import StartServer


@contextlib.contextmanager
def at_work(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let a program run as the servers' user."""
    as_whom: dict[str, Any] = {}
    if (account := accounts.server_account(None)) is not None:
        gid = pwd.getpwnam(account).pw_gid
        as_whom = {"user": account, "group": gid, "extra_groups": [gid]}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": str(log.parent), "LC_ALL": "C"},
            **as_whom,
        )
    with ended(process):
        yield process


def owned(directory: Path, name: str) -> Path:
    """Make a directory of the servers' user."""
    made = directory / name
    made.mkdir(mode=0o700)
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(made, account)
    return made


@contextlib.contextmanager
def movable(server: PgServer, directory: Path) -> Iterator[Movable]:
    """Give a fleet whose node a is this server."""
    fleet = PooledFleet(directory, {"a": server}, "managed", "managed", shards={"a": "0-7"})
    fleet.migration("0001_photos.sql", PHOTOS)
    fleet.init()
    place = owned(directory, "nodes") / "c"
    port = free_ports(1)[0]
    target = local_node(directory, "c", port, range(0), settings={}, data_directory=place)
    yield Movable(fleet, target)
    fleet.drop()


# Patroni

_PATRONI = """
scope: photos
name: a
restapi: {{listen: '127.0.0.1:{api}', connect_address: '127.0.0.1:{api}'}}
raft: {{data_dir: '{place}/raft', self_addr: '127.0.0.1:{raft}'}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    postgresql: {{parameters: {{fsync: 'off', shared_buffers: 16MB}}}}
  initdb: [auth-host: trust, auth-local: trust]
postgresql:
  listen: 127.0.0.1:{port}
  connect_address: 127.0.0.1:{port}
  data_dir: '{place}/data'
  bin_dir: '{programs}'
  pgpass: '{place}/pgpass'
  authentication: {{superuser: {{username: {user}}}, replication: {{username: {user}}}}}
  parameters: {{unix_socket_directories: ''}}
"""


@pytest.fixture
def patroni(server_directory: Path) -> Iterator[PgServer]:
    """Start a Patroni of one node, with its own Raft; give its server, which ends with the test."""
    program = shutil.which("patroni")
    if program is None:
        pytest.skip("Patroni is not installed here")
    place = owned(server_directory, "patroni")
    api, raft, port = free_ports(3)
    account = accounts.server_account(None)
    programs = binaries.find(None, account=account)
    file, log = place / "patroni.yml", place / "patroni.log"
    file.write_text(
        _PATRONI.format(
            place=place, api=api, raft=raft, port=port, programs=programs.directory, user=SUPERUSER
        )
    )
    file.chmod(0o644)
    node = local_node(place, "a", port, range(0), settings={})
    server = LocalServer(node, place / "data", programs, account)
    made = PgServer(server)
    with at_work([program, str(file)], log) as process:

        def leads() -> bool:
            """Tell whether its server takes writes and Patroni has written down its settings."""
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(Exception), made.connect() as session:
                row = session.execute("SELECT NOT pg_is_in_recovery()").fetchone()
                kept = server.data_directory / "patroni.dynamic.json"
                return row == (True,) and kept.exists()
            return False

        wait_for(leads)
        yield made
        process.kill()
        server.stop(mode="immediate")


def test_a_patroni_that_is_not_paused_is_refused(patroni: PgServer, server_directory: Path) -> None:
    with movable(patroni, server_directory) as fleet:
        fleet.only("patroni_failover")
        fleet.choose(ignore_standby=True)
        assert "node a" in fleet.notes()
        fleet.choose(ignore_standby=False)
        place = server_directory / "patroni"
        argv = ["patronictl", "-c", str(place / "patroni.yml"), "pause", "--wait"]
        given = {"HOME": str(place), "LC_ALL": "C.UTF-8"}
        Local().run(argv, user=patroni.server.account, env=given, timeout=60)

        def paused() -> bool:
            with contextlib.suppress(ShardctlError):
                return "`patronictl resume`" in fleet.notes()
            return False

        wait_for(paused)


# A source whose configuration lies outside its data directory, as Debian has it, and its TLS

RULES = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"


def test_a_clone_would_have_the_certificate_of_its_source(
    pg_server: StartServer,
    server_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority(tmp_path)
    etc = owned(server_directory, "etc")
    authority.issue(etc, "127.0.0.1")
    names = {"hba_file": own(etc / "pg_hba.conf", RULES), "ident_file": own(etc / "pg_ident.conf")}
    source = pg_server({name: str(file) for name, file in names.items()})
    for name in ("server.crt", "server.key"):
        own(source.server.data_directory / name, (etc / name).read_text())
    with source.connect() as session:
        session.execute("ALTER SYSTEM SET ssl = on")
        session.execute("SELECT pg_reload_conf()")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(authority.certificate))
    own_files = {"ssl_cert_file": str(etc / "server.crt"), "ssl_key_file": str(etc / "server.key")}
    with movable(source, server_directory) as fleet:
        fleet.check()
        fleet.change(settings=own_files)
        fleet.check()
        fleet.change(settings=own_files | {"ssl_key_file": str(etc / "none.key")})
        assert f"{etc}/none.key" in fleet.only("trial_failed")
        fleet.change(settings=own_files)
        authority.issue(etc, "db1")
        assert "db1" in fleet.only("trial_login")
        fleet.change(settings={"ssl": "off"})
        assert "SSL" in fleet.only("trial_login")
