"""`init` with poolers: their aliases come last, and a second run does nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.fleets.pooled import PooledFleet, leads, offered, reloads

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler


def write_a_row(fleet: PooledFleet, alias: str, table: str) -> int:
    """Insert through the first pooler as the application would, and read it back there."""
    with fleet.pg_bouncer.connect(alias, user=fleet.role) as client:
        row = client.execute(
            f"INSERT INTO {table} (user_id) VALUES (7) RETURNING id".encode()
        ).fetchone()
        assert row is not None
        found = client.execute(f"SELECT user_id FROM {table} WHERE id = %s".encode(), row)
        assert found.fetchone() == (7,)
    return int(row[0])


def test_a_fresh_fleet_is_served_through_shard_and_node_aliases(
    new_fleet_pooled: PooledFleet,
) -> None:
    done = new_fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert "done: 8 shards on 2 nodes and 1 pooler" in done.stderr
    assert offered(new_fleet_pooled.pg_bouncer) == leads(new_fleet_pooled)
    made = write_a_row(new_fleet_pooled, "shard2", "photos")
    assert new_fleet_pooled.query("a", "SELECT id FROM shard2.photos") == [(made,)]
    made = write_a_row(new_fleet_pooled, f"{new_fleet_pooled.database}_b", "shard5.photos")
    assert new_fleet_pooled.query("b", "SELECT id FROM shard5.photos") == [(made,)]
    for node in "ab":
        assert new_fleet_pooled.events(node) == [("init", "pooler p1: map version 1")]


def test_a_second_init_writes_nothing_and_lets_the_pooler_be(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    before = pooler.databases_file.stat().st_mtime_ns, reloads(pooler)
    done = fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert "nothing to do: 8 shards on 2 nodes and 1 pooler are up to date" in done.stdout
    assert (pooler.databases_file.stat().st_mtime_ns, reloads(pooler)) == before
    assert sorted(pooler.config.parent.glob("shards.ini*")) == [
        pooler.databases_file,
        pooler.databases_file.with_name("shards.ini.shardctl-backup"),
    ]


def test_a_dry_run_shows_the_poolers_and_changes_nothing(new_fleet_pooled: PooledFleet) -> None:
    pooler = new_fleet_pooled.pg_bouncer
    done = new_fleet_pooled.here("init", "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["changes"][-1] == {
        "action": "write", "kind": "aliases", "node": None, "pooler": "p1", "shards": [],
        "name": str(pooler.databases_file),
    }  # fmt: skip
    assert (pooler.databases_file.read_text(), reloads(pooler), offered(pooler)) == ("", 0, {})
    done = new_fleet_pooled.here("init", "--dry-run")
    assert f"p1 write aliases {pooler.databases_file}" in " ".join(done.stdout.split())


def test_without_poolers_they_are_not_even_asked(new_fleet_pooled: PooledFleet) -> None:
    pooler = new_fleet_pooled.pg_bouncer
    pooler.stop()
    done = new_fleet_pooled.here("init", "--without-poolers")
    assert done.returncode == 0, done.stderr
    assert "pooler" not in done.stdout + done.stderr
    done = new_fleet_pooled.here("init", "--without-poolers")
    assert "nothing to do: 8 shards on 2 nodes are up to date" in done.stdout
    pooler.start()
    assert (pooler.databases_file.read_text(), offered(pooler)) == ("", {})


def test_a_pooler_that_is_down_is_said_before_anything_is_made(
    new_fleet_pooled: PooledFleet,
) -> None:
    new_fleet_pooled.pg_bouncer.stop()
    for arguments in (("init",), ("init", "--dry-run")):
        done = new_fleet_pooled.here(*arguments)
        assert done.returncode == 1
        assert (
            f"shardctl: pooler p1 (127.0.0.1:{new_fleet_pooled.pg_bouncer.port}): " in done.stderr
        )
        assert "Connection refused" in done.stderr
        assert done.stdout == ""
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        new_fleet_pooled.connect("a")


def test_poolers_are_left_alone_while_shards_are_not_all_there(
    new_fleet_pooled: PooledFleet,
) -> None:
    new_fleet_pooled.migration(
        "0002_odd.sql", "DO $$ BEGIN ASSERT current_schema() <> 'shard6'; END $$;"
    )
    done = new_fleet_pooled.here("init")
    assert done.returncode == 3
    assert "node b: " in done.stderr
    assert "shardctl: pooler p1" not in done.stderr
    pooler = new_fleet_pooled.pg_bouncer
    assert (pooler.databases_file.read_text(), reloads(pooler), offered(pooler)) == ("", 0, {})


def test_a_deleted_file_is_written_anew(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    text = pooler.databases_file.read_text()
    pooler.databases_file.unlink()
    done = fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert "done: 1 change on 1 pooler" in done.stderr
    assert pooler.databases_file.read_text() == text
    assert offered(pooler) == leads(fleet_pooled)
    # The same, after the pooler has noticed.
    pooler.databases_file.write_text("")
    pooler.admin("RELOAD")
    assert offered(pooler) == {}
    assert fleet_pooled.here("init").returncode == 0
    assert pooler.databases_file.read_text() == text
    assert offered(pooler) == leads(fleet_pooled)


def test_a_restarted_pooler_needs_nothing(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    pooler.stop()
    pooler.start()
    done = fleet_pooled.here("init")
    assert "nothing to do" in done.stdout, done.stderr
    assert offered(pooler) == leads(fleet_pooled)
    assert reloads(pooler) == 1


def test_a_file_that_is_right_and_was_not_read_is_only_loaded(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    text = pooler.databases_file.read_text()
    pooler.databases_file.write_text("")
    pooler.admin("RELOAD")
    pooler.databases_file.write_text(text)
    before = pooler.databases_file.stat().st_mtime_ns
    done = fleet_pooled.here("init", "--dry-run", "-o", "json")
    assert [c["action"] for c in json.loads(done.stdout)["changes"]] == ["reload"]
    assert offered(pooler) == {}
    done = fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert offered(pooler) == leads(fleet_pooled)
    assert pooler.databases_file.stat().st_mtime_ns == before
    assert fleet_pooled.plan().changes() == []


def test_a_pooler_that_joins_later_is_all_that_init_touches(
    fleet_pooled: PooledFleet, pooler_for: AddPooler
) -> None:
    second = pooler_for(fleet_pooled, "p2")
    first = fleet_pooled.pg_bouncer
    before = first.databases_file.stat().st_mtime_ns, reloads(first)
    done = fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert "done: 1 change on 1 pooler" in done.stderr
    assert offered(second) == offered(first) == leads(fleet_pooled)
    assert (first.databases_file.stat().st_mtime_ns, reloads(first)) == before


def test_a_pooler_that_takes_nothing_leaves_the_shards_made(new_fleet_pooled: PooledFleet) -> None:
    pooler = new_fleet_pooled.pg_bouncer
    text = pooler.config.read_text()
    pooler.config.write_text(f"{text}no setting at all\n")
    done = new_fleet_pooled.here("init")
    assert done.returncode == 3
    assert (
        "pooler p1: PgBouncer rejected the new configuration; shardctl has restored the old one"
        in done.stderr
    )
    assert f"syntax error in configuration ({pooler.config}:" in done.stderr
    assert new_fleet_pooled.query("a", "SELECT map_version FROM shardctl.cluster") == [(1,)]
    assert pooler.databases_file.read_text() == ""
    pooler.config.write_text(text)
    done = new_fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert "done: 1 change on 1 pooler" in done.stderr
    assert offered(pooler) == leads(new_fleet_pooled)
