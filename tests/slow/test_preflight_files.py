"""A source whose configuration lies outside its data directory, as Debian has it, and its TLS."""

from __future__ import annotations

import shutil
from functools import cache
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from tests.fixtures.servers.certificates import Authority
from tests.fixtures.servers.managers import owned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable
    from tests.fixtures.servers.postgres import PgServer, StartServer

    ManagedBy = Callable[[PgServer], Movable]

authority = cache(Authority)
RULES = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"


@pytest.fixture
def etc(server_directory: Path) -> Path:
    """Make a directory like /etc/postgresql, in which a server has its rules and certificate."""
    made = owned(server_directory, "etc")
    issued = authority().issue("127.0.0.1")
    put(made / "pg_hba.conf", RULES.encode())
    put(made / "pg_ident.conf", b"")
    put(made / "server.crt", issued.certificate)
    put(made / "server.key", issued.key)
    (made / "root.crt").write_bytes(authority().pem)
    return made


@pytest.fixture
def fleet(etc: Path, pg_server: StartServer, managed_by: ManagedBy) -> Movable:
    names = {"hba_file": "pg_hba.conf", "ident_file": "pg_ident.conf"}
    settings = {name: str(etc / file) for name, file in names.items()}
    return managed_by(pg_server(settings))


def put(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    file.chmod(0o600)
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(file, account)


def test_a_clone_would_have_the_certificate_of_its_source(
    fleet: Movable, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fleet.fleet.servers["a"]
    data = source.server.data_directory
    for name in ("server.crt", "server.key"):
        put(data / name, (etc / name).read_bytes())
    with source.connect() as session:
        session.execute("ALTER SYSTEM SET ssl = on")
        session.execute("SELECT pg_reload_conf()")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(etc / "root.crt"))
    fleet.check()
    fleet.change(host="localhost")
    assert "localhost" in fleet.only("tls_name")
    fleet.change(host="127.0.0.1")
    own = {"ssl_cert_file": str(etc / "server.crt"), "ssl_key_file": str(etc / "server.key")}
    fleet.change(settings=own)
    fleet.check()
    fleet.change(settings=own | {"ssl_key_file": str(etc / "none.key")})
    assert f"{etc}/none.key" in fleet.only("trial_failed")
    fleet.change(settings=own)
    issued = authority().issue("db1")
    put(etc / "server.crt", issued.certificate)
    put(etc / "server.key", issued.key)
    assert "db1" in fleet.only("trial_login")
    fleet.change(settings={"ssl": "off"})
    assert "SSL" in fleet.only("trial_login")
