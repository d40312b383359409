"""The router's pools: opened when needed, told apart when they fail, through poolers and not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.router import (
    PoolSettings,
    ShardedDatabase,
)
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Open


def sessions(fleet: Fleet, node: str) -> int:
    """Count the application's sessions on a node."""
    found = fleet.query(
        node, f"SELECT count(*)::int FROM pg_stat_activity WHERE usename = '{fleet.role}'"
    )
    return int(found[0][0])


def test_all_connections_end_with_the_database(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    db.scatter("id", "photos", limit=1)
    assert sessions(fleet_routed, "a") > 0
    db.close()
    wait_for(lambda: sessions(fleet_routed, "a") == sessions(fleet_routed, "b") == 0)


def test_through_a_pooler_statements_are_never_prepared(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology())
    for _ in range(12):
        db.insert("photos", 6, {"user_id": 6})
    assert len(db.select("id", "photos", 6)) == 12
    assert db.within(6, "SELECT count(*) FROM photos") == [(12,)]
    assert len(db.scatter("id", "photos", order_by="id", limit=20)) == 12
    with fleet_pooled.pg_bouncer.console() as console:
        used = {row["database"] for row in console.execute("SHOW CLIENTS")}
    assert {f"{fleet_pooled.database}_a", f"{fleet_pooled.database}_b"} <= used
    direct = router(fleet_pooled.topology(), through="nodes")
    assert len(direct.select("id", "photos", 6)) == 12


def test_a_poolers_alias_leads_to_all_nodes(fleet_pooled: PooledFleet, router: Open) -> None:
    where = f"host=127.0.0.1 port={fleet_pooled.pg_bouncer.port} user={fleet_pooled.role}"
    db = router(f"{where} dbname={fleet_pooled.database}_b")
    for key in range(8):
        db.insert("photos", key, {"user_id": key})
    found = db.scatter("user_id", "photos", order_by="user_id", limit=9)
    assert found == [(key,) for key in range(8)]
    assert db.map_version == 1


def test_types_of_a_shards_own_are_told_apart_on_one_connection(fleet_routed: Fleet) -> None:
    for shard in range(4):
        fleet_routed.execute(
            "a",
            f"CREATE TYPE shard{shard}.mood AS ENUM ('sad', 'happy');"
            f"CREATE TABLE shard{shard}.moods (mood shard{shard}.mood);"
            f"INSERT INTO shard{shard}.moods VALUES ('happy');"
            f"GRANT ALL ON shard{shard}.moods TO {fleet_routed.role}",
        )
    with ShardedDatabase(fleet_routed.topology(), pool=PoolSettings(max_size=1)) as db:
        for turn in range(40):
            with db.shard(turn % 4) as connection:
                assert connection.execute("SELECT mood FROM moods").fetchall() == [("happy",)]
