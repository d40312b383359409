"""Clients of a shard's alias that reset their session, beside others of the same alias."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.pgbouncer import packet, reset
from tests.fixtures import resets
from tests.fixtures.fleets.healthy import examine
from tests.fixtures.fleets.pooled import refused

if TYPE_CHECKING:
    from shardctl.checks.findings import Finding
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import StartServer

COUNT = b"SELECT count(*) FROM photos"
WHERE = b"SELECT current_setting('search_path'), pg_backend_pid()"
MISSING = 'relation "photos" does not exist'


def met(pooler: PgBouncer, by: str, role: str) -> list[str]:
    """Let a client reset its session, and give what it and three others meet then."""
    found = []
    with pooler.connect("shard5", role) as one:
        one.execute(by.encode())
        for _ in range(4):
            with pooler.connect("shard5", role) as other:
                for each in (one, other):
                    try:
                        each.execute(COUNT).fetchone()
                    except psycopg.Error as error:
                        found.append(str(error.diag.message_primary))
    return found


def wrong_paths(fleet: PooledFleet) -> list[Finding]:
    return [found for found in examine(fleet, None) if found.code.startswith("search_path")]


def test_verify_finds_what_a_reset_took_away_and_the_hint_cures_it(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    fleet, pooler = fleet_pooled_healthy, fleet_pooled_healthy.pg_bouncer
    with pooler.connect("shard5", fleet.role) as one, pooler.connect("shard5", fleet.role) as two:
        with one.transaction(), two.transaction():  # two connections to the server
            pids = {each.execute(WHERE).fetchone()[1] for each in (one, two)}  # type: ignore[index]
        assert len(pids) == 2
        assert wrong_paths(fleet) == []
        with one.transaction():
            one.execute("RESET ALL")
        [found] = wrong_paths(fleet)
    assert (found.severity, found.pooler, found.shards) == ("error", "p1", (5,))
    assert (found.object, found.expected) == ("shard5", "shard5")
    assert found.actual.startswith('search_path is "$user", public on 1 of 2 connections')
    pooler.admin('RECONNECT "shard5"')
    assert 'RECONNECT "shard5"' in found.hint
    assert wrong_paths(fleet) == []


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_verify_leaves_the_connections_that_it_asks(
    fleet_pooled_healthy: PooledFleet, mode: str
) -> None:
    fleet, pooler = fleet_pooled_healthy, fleet_pooled_healthy.pg_bouncer
    pooler.admin(f"SET pool_mode = {mode}")
    with pooler.connect("shard5", fleet.role) as client:
        client.execute(COUNT)
        before = {row["ptr"] for row in pooler.admin("SHOW SERVERS")}
        assert wrong_paths(fleet) == []
        # It has logged in to other aliases, too.
        assert {row["ptr"] for row in pooler.admin("SHOW SERVERS")} >= before
        client.execute("RESET ALL")
        assert [found.code for found in wrong_paths(fleet)] == ["search_path"]


def test_verify_asks_the_connections_below_the_freshest_too(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    """PgBouncer gives the connection first that was given back last."""
    fleet, pooler = fleet_pooled_healthy, fleet_pooled_healthy.pg_bouncer
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(pooler.connect("shard5", fleet.role)) for _ in range(12)]
        for client in clients:
            client.execute("BEGIN; SELECT 1")
        clients[0].execute("RESET ALL; COMMIT")
        for client in clients[1:]:
            client.execute("ROLLBACK")
        servers = {
            row["ptr"] for row in pooler.admin("SHOW SERVERS") if row["database"] == "shard5"
        }
        [found] = wrong_paths(fleet)
        assert "on 1 of 12 connections" in found.actual
        after = {row["ptr"] for row in pooler.admin("SHOW SERVERS") if row["database"] == "shard5"}
        assert after == servers
        assert len(servers) == 12


def test_a_user_who_cannot_log_in_is_told_once(fleet_pooled_healthy: PooledFleet) -> None:
    fleet, pooler = fleet_pooled_healthy, fleet_pooled_healthy.pg_bouncer
    secret = "known to clients alone"  # noqa: S105  # of this test alone
    users = pooler.config.with_name("users.txt")
    users.write_text(f'"postgres" ""\n"{fleet.role}" "{secret}"\n')
    config = pooler.config.read_text()
    hba = pooler.config.with_name("hba.conf")
    hba.write_text(f"host all {fleet.role} 127.0.0.1/32 md5\nhost all all 127.0.0.1/32 trust\n")
    pooler.config.write_text(
        config.replace("auth_type = trust", f"auth_type = hba\nauth_hba_file = {hba}")
    )
    pooler.admin("RELOAD")
    for alias in ("shard1", "shard5"):
        with pooler.connect(alias, fleet.role, password=secret) as one:
            one.execute(COUNT)
    [found] = wrong_paths(fleet)
    assert (found.code, found.severity) == ("search_path_unknown", "note")
    assert secret not in str(found)
    assert fleet.role in found.actual
    assert "~/.pgpass" in found.hint


def test_with_survive_reset_neither_a_client_nor_its_neighbours_lose_their_shard(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    fleet = fleet_pooled_healthy
    assert met(fleet.pg_bouncer, "DISCARD ALL", fleet.role) == [MISSING] * 8
    resets.survive(fleet)
    fleet.pg_bouncer.admin('RECONNECT "shard5"')
    for by in resets.RESETS:
        assert met(fleet.pg_bouncer, by, fleet.role) == [], by
        assert wrong_paths(fleet) == [], by
    assert examine(fleet) == []
    # Sessions may be pooled then, too.
    pooler = fleet.pg_bouncer
    text = pooler.config.read_text()
    pooler.config.write_text(text.replace("pool_mode = transaction", "pool_mode = session"))
    pooler.admin("RELOAD")
    for by in resets.RESETS:
        with pooler.connect("shard5", fleet.role) as one:
            one.execute(by.encode())
        with pooler.connect("shard5", fleet.role) as other:
            assert other.execute(COUNT).fetchone() == (0,), by
    assert fleet.here("pgbouncer", "apply").returncode == 0


def test_apply_refuses_survive_reset_until_the_configuration_has_its_lines(
    fleet_unapplied: PooledFleet,
) -> None:
    fleet, pooler = fleet_unapplied, fleet_unapplied.pg_bouncer
    fleet.change(survive_reset=True)
    told = refused(fleet)
    assert "survive_reset is true, and PgBouncer does not run shardctl's server_reset_query" in told
    lines = [line.strip() for line in told.splitlines() if "server_reset" in line][1:]
    assert lines == [f"{key} = {value}" for key, value in reset.SETTINGS.items()]
    config = pooler.config.read_text()
    text = "\n".join([*lines, "pool_mode ="])
    pooler.config.write_text(config.replace("pool_mode =", text))
    pooler.admin("RELOAD")
    done = fleet.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    assert f"note: pooler p1: {reset.NOTE}" in done.stderr
    assert "pg8000" in reset.NOTE
    assert met(pooler, "DISCARD ALL", fleet.role) == []
    assert fleet.here("pgbouncer", "diff").returncode == 0


def test_what_a_client_sends_behind_its_reset_without_waiting_is_not_in_its_shard(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    """Npgsql does so: PgBouncer keeps a server connection for all that arrives together."""
    fleet = fleet_pooled_healthy
    resets.survive(fleet)
    with fleet.pg_bouncer.connect("shard5", fleet.role) as one:
        together = ["DISCARD ALL", COUNT.decode()]
        _, behind = packet.exchange(one.pgconn, together, seconds=10)
        assert MISSING in (behind.error or "")
        assert one.execute(COUNT).fetchone() == (0,)
    assert wrong_paths(fleet) == []


@pytest.mark.embedded
@pytest.mark.parametrize("major", [16, 18])
def test_other_versions_of_postgresql_give_the_path_back_too(
    pg_server: StartServer, pg_bouncer: PgBouncer, major: int
) -> None:
    """PostgreSQL 18 reports search_path to its clients, which PgBouncer 1.18 leaves alone."""
    server = pg_server(major=major)
    query = reset.connect_query("shard5", survives=True).replace("'", "''")
    pg_bouncer.databases_file.write_text(
        f"[databases]\nshard5 = host=127.0.0.1 port={server.port} dbname=postgres"
        f" application_name=shard5 connect_query='{query}'\n"
    )
    resets.configure(pg_bouncer)
    for by in resets.RESETS:
        with pg_bouncer.connect("shard5") as one, pg_bouncer.connect("shard5") as other:
            one.execute(by.encode())
            seen = [client.execute(WHERE).fetchone() for client in (other, one)]
        assert seen[0] == seen[1], by
        assert seen[0] is not None
        assert seen[0][0] == "shard5", by


def test_connections_of_others_are_left_as_they_are(fleet_pooled_healthy: PooledFleet) -> None:
    fleet = fleet_pooled_healthy
    resets.survive(fleet)
    with fleet.pg_bouncer.connect(f"{fleet.database}_b", fleet.role) as one:
        one.execute("SET search_path TO shard6")
        assert one.execute(WHERE).fetchone()[0] == "shard6"  # type: ignore[index]
