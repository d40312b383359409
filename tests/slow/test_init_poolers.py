"""`init` with poolers: their aliases come last, and a second run does nothing."""

from __future__ import annotations

from tests.fixtures.fleets.pooled import PooledFleet, leads, offered


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
    assert offered(new_fleet_pooled.pg_bouncer) == leads(new_fleet_pooled)
    made = write_a_row(new_fleet_pooled, "shard2", "photos")
    assert new_fleet_pooled.query("a", "SELECT id FROM shard2.photos") == [(made,)]
    made = write_a_row(new_fleet_pooled, f"{new_fleet_pooled.database}_b", "shard5.photos")
    assert new_fleet_pooled.query("b", "SELECT id FROM shard5.photos") == [(made,)]
    for node in "ab":
        assert new_fleet_pooled.events(node) == [("init", "pooler p1: map version 1")]


def test_a_pooler_that_takes_nothing_leaves_the_shards_made(new_fleet_pooled: PooledFleet) -> None:
    pooler = new_fleet_pooled.pg_bouncer
    text = pooler.config.read_text()
    pooler.config.write_text(f"{text}no setting at all\n")
    done = new_fleet_pooled.here("init")
    assert done.returncode == 3
    assert str(pooler.config) in done.stderr
    assert new_fleet_pooled.query("a", "SELECT map_version FROM shardctl.cluster") == [(1,)]
    assert pooler.databases_file.read_text() == ""
    pooler.config.write_text(text)
    done = new_fleet_pooled.here("init")
    assert done.returncode == 0, done.stderr
    assert offered(pooler) == leads(new_fleet_pooled)
