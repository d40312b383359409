"""Clients of a shard's alias that reset their session, beside others of the same alias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.healthy import examine

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.fleets.pooled import PooledFleet

COUNT = b"SELECT count(*) FROM photos"
WHERE = b"SELECT current_setting('search_path'), pg_backend_pid()"


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
    pooler.admin('RECONNECT "shard5"')
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
