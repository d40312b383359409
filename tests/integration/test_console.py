"""The admin console of a real PgBouncer: what it says, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.pgbouncer.console import Alias, CommandRefused, Console, PoolerLost, PoolerUnavailable
from tests.fixtures.servers.pgbouncer import _CONFIGURATION, end, make
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import PgServer

SECRET = "s3cret-of-the-admin"  # noqa: S105  # of a pooler that lives as long as a test


@pytest.fixture(scope="module")
def node(two_servers: Mapping[str, PgServer]) -> PgServer:
    return two_servers["a"]


@pytest.fixture(scope="module")
def pooler(pgbouncer_program: str, session_directory: Path, node: PgServer) -> Iterator[PgBouncer]:
    """One PgBouncer for the tests that let it be, with two aliases that lead somewhere."""
    made = make(session_directory / "console", program=pgbouncer_program)
    made.start()
    made.offer(one=node.port, two=node.port)
    yield made
    end(made)


@pytest.fixture
def console(pooler: PgBouncer) -> Iterator[Console]:
    with pooler.console() as session:
        yield session


def unavailable(pooler: PgBouncer, **changes: Any) -> PoolerUnavailable:
    with pytest.raises(PoolerUnavailable) as refused:
        pooler.console(**changes)
    assert refused.value.message.startswith("pooler p1 (")
    assert refused.value.hint
    assert "\n" not in refused.value.message
    return refused.value


def test_aliases_are_told_with_where_they_lead_and_without_the_consoles_own(
    console: Console, node: PgServer
) -> None:
    assert console.databases() == {
        name: Alias(name, "127.0.0.1", node.port, "postgres", paused=False, disabled=False)
        for name in ("one", "two")
    }


def test_pause_and_resume_tell_what_they_found(console: Console) -> None:
    assert console.resume("one") is False
    console.pause("one", seconds=5)
    console.pause("one", seconds=5)
    assert {a.name: a.paused for a in console.databases().values()} == {"one": True, "two": False}
    assert console.resume("one") is True
    assert console.resume("one") is False
    assert not console.databases()["one"].paused


def test_an_unknown_alias_is_refused_and_never_taken_for_one_that_is_not_paused(
    console: Console,
) -> None:
    for action in (lambda: console.pause("nosuch", seconds=5), lambda: console.resume("nosuch")):
        with pytest.raises(CommandRefused, match="nosuch") as refused:
            action()
        assert not refused.value.not_paused


def test_odd_names_of_aliases_arrive_as_they_are(console: Console) -> None:
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
    made = make(
        server_directory,
        program=pgbouncer_program,
        configuration=text.replace("{users}", str(listed)),
    )
    made.start()
    yield made, passfile
    end(made)


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


def lost(console: Console, command: str, *, seconds: float = 10) -> PoolerLost:
    with pytest.raises(PoolerLost) as broke:
        console.execute(command, seconds=seconds)
    assert (broke.value.pooler, broke.value.command) == ("p1", command)
    assert broke.value.exit_code == 3
    assert "\n" not in broke.value.message
    return broke.value


@contextlib.contextmanager
def open_transaction(pooler: PgBouncer, alias: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold a transaction open, and end it however the pooler ends."""
    client = pooler.connect(alias)
    client.execute("BEGIN")
    try:
        yield client
    finally:
        with contextlib.suppress(psycopg.OperationalError):
            client.execute("COMMIT")
        client.close()


def test_a_pause_that_waits_for_a_transaction_is_resumed_over_another_session(
    pg_bouncer: PgBouncer, node: PgServer
) -> None:
    pg_bouncer.offer(one=node.port)
    with open_transaction(pg_bouncer, "one") as client:
        with pg_bouncer.console() as console:
            assert "within 0.3 s" in lost(console, 'PAUSE "one"', seconds=0.3).message
        with pg_bouncer.console() as other:
            assert other.databases()["one"].paused
            client.execute("COMMIT")
            answers: list[Any] = []
            waiting = threading.Thread(
                target=lambda: answers.extend(client.execute("SELECT 1").fetchall())
            )
            waiting.start()
            wait_for(lambda: other.clients()[0]["state"] == "waiting")
            assert answers == []
            assert other.resume("one") is True
            waiting.join(120)
            assert answers == [(1,)]
            assert not other.databases()["one"].paused
