"""Servers that cannot be nodes: refused with what to do, and nothing changed anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.provision.observe import check_version
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import rules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.servers.postgres import PgServer

SECRET = "s3cret-of-the-test"  # noqa: S105  # a test's own


@pytest.fixture
def apart(safe_servers: dict[str, PgServer]) -> PgServer:
    """Give a server on which no fleet of this file is."""
    return safe_servers["b"]


def untouched(one: Fleet, node: str) -> bool:
    with one.servers[node].connect() as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_database WHERE datname = %s", (one.database,)
        ).fetchone()
    return found == (0,)


def test_a_wrong_password_is_said_and_never_shown(
    new_fleet: Fleet, apart: PgServer, tmp_path: Path
) -> None:
    password = sql.SQL("ALTER ROLE postgres PASSWORD {}")
    with apart.connect() as connection:
        connection.execute(password.format(sql.Literal(SECRET)))
    new_fleet.servers = {"a": new_fleet.servers["a"], "b": apart}
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:*:wrong-" + SECRET)
    passfile.chmod(0o600)
    with rules(apart, "host all all 127.0.0.1/32 scram-sha-256\n"):
        given = {"PGPASSFILE": str(passfile)}
        new_fleet.write()
        wrong = new_fleet.here_as_written("--verbose", "init", **given)
        none = new_fleet.here_as_written("--verbose", "init", PGPASSFILE="/nonexistent")
        passfile.write_text("*:*:*:*:" + SECRET)
        right = new_fleet.here_as_written("--verbose", "init", **given)
    with apart.connect() as connection:
        connection.execute(password.format(sql.NULL))
    assert (wrong.returncode, none.returncode, right.returncode) == (1, 1, 0), right.stderr
    assert "PGPASSFILE" in wrong.stderr
    logs = "".join(f.read_text() for f in (tmp_path / "state").rglob("*.log"))
    assert logs
    for text in (wrong.stderr, wrong.stdout, none.stderr, right.stderr, right.stdout, logs):
        assert SECRET not in text


def test_a_standby_is_refused(new_fleet: Fleet, apart: PgServer) -> None:
    signal = apart.server.data_directory / "standby.signal"
    apart.stop()
    signal.touch()
    apart.start()
    new_fleet.servers = {"a": new_fleet.servers["a"], "b": apart}
    try:
        with raises_code("node_unfit") as refused:
            new_fleet.init()
    finally:
        apart.stop()
        signal.unlink()
        apart.start()
    assert "primary" in refused.value.hint
    assert untouched(new_fleet, "a")


def test_a_server_older_than_14_is_refused() -> None:
    check_version("a", 140_000, "14.0")
    with raises_code("node_unfit"):
        check_version("a", 130_022, "13.22")
