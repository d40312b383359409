"""The admin console of a real PgBouncer: what it says, and what it says when it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.pgbouncer.console import CommandRefused, PoolerUnavailable
from tests.fixtures.servers.pgbouncer import _CONFIGURATION, running
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.fixtures.servers.pgbouncer import Admin, PgBouncer
    from tests.fixtures.servers.postgres import PgServer

SECRET = "s3cret-of-the-admin"  # noqa: S105  # of a pooler that lives as long as a test


@pytest.fixture(scope="module")
def node(two_servers: Mapping[str, PgServer]) -> PgServer:
    return two_servers["a"]


@pytest.fixture(scope="module")
def pooler(pgbouncer_program: str, session_directory: Path, node: PgServer) -> Iterator[PgBouncer]:
    """One PgBouncer for the tests that let it be, with two aliases that lead somewhere."""
    with running(session_directory / "console", program=pgbouncer_program) as made:
        made.offer(one=node.port, two=node.port)
        yield made


@pytest.fixture
def console(pooler: PgBouncer) -> Iterator[Admin]:
    with pooler.console() as session:
        yield session


def unavailable(pooler: PgBouncer, **changes: Any) -> PoolerUnavailable:
    with pytest.raises(PoolerUnavailable) as refused:
        pooler.console(**changes)
    assert refused.value.message.startswith("pooler p1 (")
    assert "\n" not in refused.value.message
    return refused.value


def test_odd_names_of_aliases_arrive_as_they_are(console: Admin) -> None:
    for name in ('a"b', "a b", "Ä", "A;b", "--", "x" * 61):
        with pytest.raises(CommandRefused) as refused:
            console.resume(name)
        assert refused.value.reason.endswith(f": {name}")


@pytest.fixture
def guarded(
    pgbouncer_program: str,
    server_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[PgBouncer, Path]]:
    """A PgBouncer that asks for passwords, and the passfile that has the right one."""
    listed, passfile = server_directory / "listed", server_directory / "passfile"
    listed.write_text(f'"postgres" "{SECRET}"\n')
    passfile.write_text(f"*:*:pgbouncer:postgres:{SECRET}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    text = _CONFIGURATION.replace("auth_type = trust", "auth_type = scram-sha-256")
    text = text.replace("{users}", str(listed))
    with running(server_directory, program=pgbouncer_program, configuration=text) as made:
        yield made, passfile


def test_the_password_comes_from_the_passfile_and_is_never_told(
    guarded: tuple[PgBouncer, Path],
) -> None:
    pooler, passfile = guarded
    with pooler.console() as console:
        assert console.version()
    for text in ("*:*:pgbouncer:postgres:other-s3cret\n", ""):
        passfile.write_text(text)
        error = unavailable(pooler)
        assert "~/.pgpass" in error.hint
        assert "s3cret" not in f"{error}{error.hint}{error.__cause__}"
    assert "~/.pgpass" not in unavailable(pooler, port=free_ports(1)[0]).hint
