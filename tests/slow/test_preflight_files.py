"""A source whose configuration lies outside its data directory, as Debian has it, and its TLS."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.moves.preflight import target, tls
from shardctl.moves.preflight.tls import Tls
from tests.fixtures.servers.certificates import Authority
from tests.fixtures.servers.managers import owned

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.preflight.tls import Key
    from tests.fixtures.moves.preflight import Movable
    from tests.fixtures.servers.postgres import PgServer, StartServer

    ManagedBy = Callable[[PgServer], Movable]

AUTHORITY = Authority()
ROLE = "mover"
RULES = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"


@pytest.fixture
def etc(server_directory: Path) -> Path:
    """Make a directory like /etc/postgresql, in which a server has its rules and certificate."""
    made = owned(server_directory, "etc")
    issued = AUTHORITY.issue("127.0.0.1")
    put(made / "pg_hba.conf", RULES.encode())
    put(made / "pg_ident.conf", b"")
    put(made / "server.crt", issued.certificate)
    put(made / "server.key", issued.key)
    (made / "root.crt").write_bytes(AUTHORITY.pem)
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
    put(data / "server.crt", AUTHORITY.issue("db1").certificate)
    # Of a file that it has not read again, the server still shows what it read.
    assert "db1" in fleet.only("tls_name")
    own = {"ssl_cert_file": str(etc / "server.crt"), "ssl_key_file": str(etc / "server.key")}
    fleet.change(settings=own)
    fleet.check()
    fleet.change(settings=own | {"ssl_key_file": str(etc / "none.key")})
    assert f"{etc}/none.key" in fleet.only("tls_files")
    fleet.change(settings={"ssl_ca_file": "none.crt"})
    assert "none.crt" in fleet.refused()["tls_files"]
    (data / "server.key").unlink()
    fleet.change(settings={})
    assert "server.key" in fleet.refused()["tls_files"]


def test_what_is_seen_of_a_key(preflight_fleet: Movable, etc: Path) -> None:
    account = preflight_fleet.server().account
    context = preflight_fleet.on_this_machine(preflight_fleet.topology)
    context.found[target.look] = target.Machine(Local(), account)
    key, pem = etc / "server.key", (etc / "server.crt").read_text()

    def look(certificate: str | None = pem) -> Key:
        context.found[tls.look] = Tls(on=True, key=str(key), pem=certificate)
        found = tls.look_at_key(context)
        assert found is not None
        return found

    seen = look()
    assert (seen.mode, seen.owner, seen.encrypted, seen.fits) == (0o600, seen.user, False, True)
    assert look(AUTHORITY.issue("127.0.0.1").certificate.decode()).fits is False
    assert look(None).fits is None
    key.chmod(0o644)
    assert look().mode == 0o644
    words = f"openssl pkey -aes256 -passout pass:x -in {key} -out {key}2".split()
    subprocess.run(words, check=True)
    put(key, Path(f"{key}2").read_bytes())
    assert (look().encrypted, look().fits) == (True, None)


def test_files_outside_the_data_directory_need_a_right_that_preflight_asks_for(
    fleet: Movable, etc: Path
) -> None:
    source = fleet.fleet.servers["a"]
    topology = fleet.topology
    topology = dataclasses.replace(
        topology, database=dataclasses.replace(topology.database, user=ROLE)
    )
    with source.connect() as session:
        session.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION IN ROLE pg_monitor".encode())
        try:
            schemas = ", ".join(["shardctl", *(f"shard{n}" for n in range(8))])
            fleet.fleet.execute(
                "a",
                f"GRANT CONNECT ON DATABASE {fleet.fleet.database} TO {ROLE};"
                f"GRANT USAGE ON SCHEMA {schemas} TO {ROLE};"
                f"GRANT SELECT ON ALL TABLES IN SCHEMA shardctl TO {ROLE}",
            )
            told = fleet.refused(topology)["rights"]
            assert f"pg_read_server_files (outside the data directory: {etc}/pg_hba.conf" in told
            assert f'GRANT pg_read_server_files TO "{ROLE}"' in told
            session.execute(f"GRANT pg_read_server_files TO {ROLE}".encode())
            assert "pg_read_server_files" not in fleet.refused(topology)["rights"]
        finally:
            fleet.fleet.execute("a", f"DROP OWNED BY {ROLE}")
            session.execute(f"DROP OWNED BY {ROLE}".encode())
            session.execute(f"DROP ROLE {ROLE}".encode())
