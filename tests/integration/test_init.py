"""`init`: it makes what is missing, and only that; what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.provision import apply as applying
from shardctl.provision.refusals import OwnershipDiffers
from shardctl.state.cluster import SchemaTaken
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.provision.plan import Change
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.servers.postgres import StartServer


def told(
    changes: Iterable[Change],
) -> list[tuple[str | None, str, str, tuple[int, ...], str | None]]:
    return [(c.node, c.action, c.kind, tuple(c.shards), c.name) for c in changes]


def test_a_map_that_a_move_writes_meanwhile_stays(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move of other nodes has this node's lock as little as this command has theirs."""
    version = "UPDATE shardctl.cluster SET map_version = {}"
    fleet_8.execute("a", version.format(2))  # node b was away then
    work = applying.apply

    def moved_meanwhile(*given: Any, **named: Any) -> list[ShardctlError]:
        fleet_8.execute("b", "UPDATE shardctl.map SET node = 'c' WHERE shard = 0")
        fleet_8.execute("b", version.format(3))
        return work(*given, **named)

    monkeypatch.setattr(applying, "apply", moved_meanwhile)
    done = fleet_8.here("init")
    assert done.returncode == 0, done.stderr
    found = "SELECT map_version, m.node FROM shardctl.cluster, shardctl.map AS m WHERE shard = 0"
    assert fleet_8.query("b", found) == [(3, "c")]


def test_a_new_database_lets_no_stranger_in(new_fleet: Fleet) -> None:
    """Whoever may log in can hold locks, and see what runs; `verify` notes an older database."""
    name, replicating = new_fleet.database, f"{new_fleet.role}_replicating"
    text = new_fleet.write().read_text()
    text = text.replace("app_roles", f"replication_user: {replicating}\n  app_roles")
    new_fleet.file.write_text(text)
    for server in new_fleet.servers.values():
        with server.connect() as session:
            session.execute(f"CREATE ROLE {replicating} REPLICATION LOGIN".encode())
    try:
        assert new_fleet.here_as_written("init").returncode == 0
        asked = "SELECT has_database_privilege('{}', current_database(), 'CONNECT')"
        may = [new_fleet.query("a", asked.format(role)) for role in ("public", replicating)]
        assert may == [[(False,)], [(True,)]]
        done = new_fleet.here_as_written("verify", "--strict", "--check", "connection")
        assert done.returncode == 0, done.stdout
        new_fleet.execute("a", f"GRANT CONNECT ON DATABASE {name} TO PUBLIC")
        done = new_fleet.here_as_written("verify", "--strict", "--check", "connection")
        assert done.returncode == 0
        assert name in done.stdout
    finally:
        new_fleet.drop()
        for server in new_fleet.servers.values():
            with server.connect() as session:
                session.execute(f"DROP ROLE {replicating}".encode())


def test_an_application_role_reads_and_writes_and_no_more(fleet_8: Fleet) -> None:
    with fleet_8.connect("a", user=fleet_8.role) as connection:
        connection.execute("INSERT INTO shard1.photos (user_id) VALUES (1)")
        connection.execute("UPDATE shard1.photos SET user_id = 9")
        assert connection.execute("SELECT user_id FROM shard1.photos").fetchall() == [(9,)]
        assert connection.execute("SELECT count(*) FROM shardctl.map").fetchone() == (8,)
        [(allowed,)] = connection.execute(
            "SELECT has_schema_privilege('shard1', 'CREATE')"
            " OR has_table_privilege('shardctl.map', 'INSERT')"
            " OR has_table_privilege('shardctl.event', 'SELECT')"
        ).fetchall()
        assert not allowed


def test_what_was_dropped_or_changed_by_hand_is_put_back(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "DROP FUNCTION shard1.next_id() CASCADE")
    fleet_8.execute(
        "a",
        "CREATE OR REPLACE FUNCTION shard2.next_id() RETURNS bigint LANGUAGE sql"
        " AS 'SELECT 1::bigint'",
    )
    fleet_8.execute("a", f"REVOKE USAGE ON SEQUENCE shard3.next_id_seq FROM {fleet_8.role}")
    fleet_8.execute("b", "DROP FUNCTION shardctl.id_time(bigint)")
    plan = fleet_8.init()
    assert told(plan.changes()) == [
        ("a", "create", "next_id", (1,), None),
        ("a", "replace", "next_id", (2,), None),
        ("a", "grant", "shard", (1, 3), fleet_8.role),
        ("b", "replace", "function", (), "shardctl.id_time"),
    ]
    assert fleet_8.plan().changes() == []


def test_strict_after_classic_goes_on_however_many_ids_were_drawn_between(fleet_8: Fleet) -> None:
    fleet_8.query("a", "SELECT shard3.next_id()")
    fleet_8.generator = "classic"
    fleet_8.init()
    # Five of eight parts of all block numbers later, the old register would seem to be ahead.
    fleet_8.query("a", f"SELECT setval('shard3.next_id_seq', {5 << 30})")
    before = fleet_8.query("a", "SELECT shard3.next_id()")
    page = (Path(__file__).parents[2] / "docs/ids.md").read_text()
    statement = page.partition("shardctl sql --write --yes '")[2].partition("'\n```")[0]
    done = fleet_8.here("sql", "--write", "--yes", statement.replace("'\\''", "'"))
    assert done.returncode == 0, done.stderr
    fleet_8.generator = "strict"
    fleet_8.init()
    with fleet_8.connect("a") as connection:
        connection.execute("SET statement_timeout = '5s'")
        assert connection.execute("SELECT shard3.next_id()").fetchall() > before


def test_a_schema_that_shardctl_did_not_make_is_not_adopted_silently(new_fleet: Fleet) -> None:
    with new_fleet.servers["a"].connect() as connection:
        connection.execute(f"CREATE DATABASE {new_fleet.database}")
    new_fleet.execute("a", "CREATE SCHEMA shard2; CREATE TABLE shard2.old (n int)")
    with raises_code("schema_in_the_way", match="shard2") as refused:
        new_fleet.init()
    assert "--adopt" in refused.value.hint
    assert new_fleet.query("a", "SELECT to_regclass('shardctl.cluster')") == [(None,)]
    plan = new_fleet.init(adopt=True)
    assert ("a", "adopt", "schema", (2,), None) in told(plan.changes())
    assert new_fleet.query("a", "SELECT count(*) FROM shard2.old, shard2.photos") == [(0,)]
    assert new_fleet.plan().changes() == []


def test_a_retired_copy_forbids_making_its_shard_anew(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "ALTER SCHEMA shard2 RENAME TO shard2__retired_5f3a9c1e")
    with raises_code("shard_lost", match="2"):
        fleet_8.init()
    fleet_8.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard = 2")
    with pytest.raises(OwnershipDiffers):
        fleet_8.init()


def test_a_shard_that_lives_on_another_node_is_not_made_a_second_time(new_fleet: Fleet) -> None:
    with new_fleet.servers["b"].connect() as connection:
        connection.execute(f"CREATE DATABASE {new_fleet.database}")
    new_fleet.execute("b", "CREATE SCHEMA shard1")
    with raises_code("schema_in_the_way"):
        new_fleet.init()


def test_a_schema_that_was_made_and_is_gone_is_not_made_anew_empty(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "DROP SCHEMA shard1 CASCADE")
    with raises_code("shard_lost"):
        fleet_8.init()


def test_a_migration_that_was_changed_after_it_ran_is_refused(fleet_8: Fleet) -> None:
    fleet_8.migration("0001_photos.sql", "CREATE TABLE photos (id bigint);")
    with pytest.raises(Problems) as refused:
        fleet_8.init()
    assert [error.code for error in refused.value.errors] == ["migration_changed"] * 2
    assert "0001_photos.sql" in str(refused.value.errors[0])


def test_a_server_of_another_cluster_or_node_is_never_changed(fleet_8: Fleet) -> None:
    fleet_8.cluster = "another"
    with raises_code("node_unfit"):
        fleet_8.init()
    fleet_8.cluster = "test"
    fleet_8.servers = {"a": fleet_8.servers["b"], "b": fleet_8.servers["a"]}
    with pytest.raises(Problems) as swapped:
        fleet_8.init()
    assert {error.code for error in swapped.value.errors} == {"node_unfit"}


def test_what_is_fixed_for_life_may_not_change(fleet_8: Fleet) -> None:
    fleet_8.count, fleet_8.shards = 9, {"a": "0-3", "b": "4-8"}
    with raises_code("node_unfit"):
        fleet_8.init()


def test_a_newer_format_is_not_written_to(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "UPDATE shardctl.cluster SET format = 99")
    with raises_code("format_too_new"):
        fleet_8.init()


def test_a_plan_that_is_out_of_date_is_not_carried_out(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_x.sql", "CREATE TABLE x (n int);")
    plan = fleet_8.plan()
    fleet_8.init()
    with raises_code("plan_outdated", match="a, b"):
        fleet_8.carry_out(plan)


def test_an_empty_server_in_the_place_of_a_node_gets_no_empty_shards(
    fleet_8: Fleet, pg_server: StartServer
) -> None:
    fleet_8.servers = {"a": pg_server(), "b": fleet_8.servers["b"]}
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
