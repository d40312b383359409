"""`init` where something is wrong: lost servers, missing rights, things not of its making."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import Problems
from shardctl.state.cluster import SchemaTaken
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.provision.plan import Change
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.servers.postgres import PgServer


def told(
    changes: Iterable[Change],
) -> list[tuple[str | None, str, str, tuple[int, ...], str | None]]:
    return [(c.node, c.action, c.kind, tuple(c.shards), c.name) for c in changes]


def test_an_empty_server_in_the_place_of_a_node_gets_no_empty_shards(
    fleet_8: Fleet, safe_servers: dict[str, PgServer]
) -> None:
    fleet_8.servers = {"a": safe_servers["a"], "b": fleet_8.servers["b"]}
    with raises_code("shard_lost"):
        fleet_8.init()
    with fleet_8.servers["a"].connect() as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_database WHERE datname = %s", (fleet_8.database,)
        ).fetchone() == (0,)


def test_the_map_has_no_version_until_all_shards_of_all_nodes_are_there(
    new_fleet: Fleet,
) -> None:
    new_fleet.migration("0002_odd.sql", "DO $$ BEGIN ASSERT current_schema() <> 'shard6'; END $$;")
    with pytest.raises(Problems) as refused:
        new_fleet.init()
    assert refused.value.exit_code == 3
    for node in "ab":
        assert new_fleet.query(node, "SELECT map_version FROM shardctl.cluster") == [(0,)]
    assert new_fleet.query("a", "SELECT shard FROM shardctl.map ORDER BY 1") == [
        (0,), (1,), (2,), (3,),
    ]  # fmt: skip


def test_a_role_that_may_not_create_is_told_in_the_dry_run(new_fleet: Fleet) -> None:
    with new_fleet.servers["a"].connect() as connection:
        connection.execute(f"CREATE ROLE {new_fleet.role} LOGIN")
    text = (
        new_fleet.write()
        .read_text()
        .replace("app_roles: [", f"user: {new_fleet.role}\n  app_roles: [other, ")
    )
    new_fleet.file.write_text(text)
    with new_fleet.servers["b"].connect() as connection:
        connection.execute(f"CREATE ROLE {new_fleet.role} SUPERUSER LOGIN")
    done = new_fleet.here_as_written("init", "--dry-run")
    assert done.returncode == 1
    assert str(new_fleet.role) in done.stderr
    assert str(new_fleet.role) in done.stderr
    assert "node b" not in done.stderr


def test_what_a_migration_revoked_stays_revoked(fleet_8: Fleet) -> None:
    fleet_8.migration(
        "0002_audit.sql", f"CREATE TABLE audit (n int); REVOKE ALL ON audit FROM {fleet_8.role};"
    )
    fleet_8.init()
    fleet_8.execute("a", f"REVOKE SELECT ON SEQUENCE shard1.next_id_block FROM {fleet_8.role}")
    plan = fleet_8.init()
    assert told(plan.changes()) == [("a", "grant", "shard", (1,), fleet_8.role)]
    with fleet_8.connect("a", user=fleet_8.role) as connection:
        assert connection.execute("SELECT shard1.next_id()").fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM shard1.audit")


def test_adopted_sequences_are_made_fit(new_fleet: Fleet) -> None:
    with new_fleet.servers["a"].connect() as connection:
        connection.execute(f"CREATE DATABASE {new_fleet.database}")
    new_fleet.execute(
        "a",
        "CREATE SCHEMA shard2; CREATE SEQUENCE shard2.next_id_block AS integer;"
        "CREATE SEQUENCE shard2.next_id_seq MAXVALUE 1000 CACHE 50 CYCLE",
    )
    plan = new_fleet.init(adopt=True)
    assert ("a", "replace", "sequence", (2,), None) in told(plan.changes())
    assert new_fleet.query(
        "a", "SELECT count(DISTINCT shard2.next_id()) FROM generate_series(1, 3000)"
    ) == [(3000,)]
    assert new_fleet.plan().changes() == []


def test_somebody_elses_schema_of_shardctls_name_is_refused(new_fleet: Fleet) -> None:
    with new_fleet.servers["a"].connect() as connection:
        connection.execute(f"CREATE DATABASE {new_fleet.database}")
    new_fleet.execute("a", "CREATE SCHEMA shardctl")
    with pytest.raises(SchemaTaken):
        new_fleet.init()
