"""Servers that cannot be nodes: refused with what to do, and nothing changed anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.errors import Problems
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import fleet
from shardctl.provision.observe import check_version
from shardctl.topology import loader
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import rules
from tests.fixtures.servers.postgres import free_ports

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


def with_ports(one: Fleet, **ports: int) -> None:
    """Write the topology with other ports for these nodes."""
    text = one.write().read_text()
    for node, port in ports.items():
        text = text.replace(f"port: {one.servers[node].port},", f"port: {port},")
    one.file.write_text(text)


def test_an_unreachable_node_is_named_and_nothing_is_changed(new_fleet: Fleet) -> None:
    with_ports(new_fleet, b=free_ports(1)[0])
    done = new_fleet.here_as_written("init", "-o", "json")
    assert done.returncode == 1
    assert "127.0.0.1" in done.stderr
    assert json.loads(done.stdout)["errors"][0]["message"] in done.stderr
    assert untouched(new_fleet, "a")


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


def test_every_node_that_cannot_be_read_is_named_at_once(new_fleet: Fleet) -> None:
    first, second = free_ports(2)
    with_ports(new_fleet, a=first, b=second)
    with pytest.raises(Problems) as refused:
        fleet.plan_init(loader.load(new_fleet.file))
    assert [type(error) for error in refused.value.errors] == [NodeUnavailable] * 2
    assert refused.value.exit_code == 1
