"""Preflight changes nothing, tells several troubles at once, and looks at what all nodes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable


EVERYTHING = """
SELECT (SELECT array_agg((n.nspname, n.xmin, n.ctid)::text ORDER BY n.oid) FROM pg_namespace AS n),
       (SELECT array_agg((c.relname, c.xmin, c.ctid)::text ORDER BY c.oid) FROM pg_class AS c
        WHERE c.relkind <> 't' AND c.relnamespace >= 16384),
       (SELECT array_agg(c::text) FROM shardctl.cluster AS c),
       (SELECT array_agg(m::text) FROM shardctl.map AS m),
       (SELECT array_agg(m::text) FROM shardctl.move AS m),
       (SELECT count(*) FROM shardctl.event), (SELECT count(*) FROM shardctl.move_step),
       (SELECT array_agg(slot_name) FROM pg_replication_slots),
       (SELECT array_agg(last_value) FROM pg_sequences)
"""


def test_nothing_is_changed(preflight_pooled: Movable) -> None:
    fleet = preflight_pooled.fleet
    pooler = fleet.pg_bouncer
    before = {node: fleet.query(node, EVERYTHING) for node in "ab"}
    files = {f: f.stat().st_mtime_ns for f in pooler.config.parent.iterdir() if f.suffix == ".ini"}
    reloads = pooler.log().count("RELOAD command issued")
    preflight_pooled.check()
    preflight_pooled.choose(max_rate=1)
    preflight_pooled.refused()
    assert {node: fleet.query(node, EVERYTHING) for node in "ab"} == before
    assert files == {
        f: f.stat().st_mtime_ns for f in pooler.config.parent.iterdir() if f.suffix == ".ini"
    }
    assert pooler.log().count("RELOAD command issued") == reloads
    with pooler.console() as console:
        assert not any(alias.paused for alias in console.databases().values())
    assert preflight_pooled.target.data_directory is not None
    assert not preflight_pooled.target.data_directory.exists()


def test_every_refusal_is_told_at_once(preflight_pooled: Movable, tmp_path: Path) -> None:
    preflight_pooled.fleet.pg_bouncer.admin("SET query_wait_timeout = 6")
    preflight_pooled.change(data_directory=tmp_path / "x", settings={"max_connections": "5"})
    preflight_pooled.choose(max_rate=1)
    with preflight_pooled.having(
        "CREATE TABLE photos (); CREATE UNLOGGED TABLE shard2.u ()",
        "DROP TABLE photos, shard2.u",
    ):
        told = preflight_pooled.refused()
    assert set(told) >= {
        "query_wait_timeout", "settings", "table_shadowed", "unlogged", "shared_tables", "max_rate",
    }  # fmt: skip


def test_a_map_that_became_another_or_contradicts_the_topology(preflight_fleet: Movable) -> None:
    raised = "UPDATE shardctl.cluster SET map_version = 2"
    with preflight_fleet.having(raised, "UPDATE shardctl.cluster SET map_version = 1"):
        preflight_fleet.only("map_changed")
    moved = "UPDATE shardctl.map SET node = 'b' WHERE shard = 3"
    with preflight_fleet.having(
        moved, "UPDATE shardctl.map SET node = 'a' WHERE shard = 3", node="b"
    ):
        preflight_fleet.only("ownership_differs")


def test_a_node_without_a_journal(preflight_fleet: Movable) -> None:
    with preflight_fleet.having(
        "ALTER TABLE shardctl.move RENAME TO was_move",
        "ALTER TABLE shardctl.was_move RENAME TO move",
        node="b",
    ):
        assert "shardctl.move" in preflight_fleet.only("node_unavailable")


def test_shards_that_are_not_where_they_should_be(preflight_fleet: Movable) -> None:
    with preflight_fleet.having("CREATE SCHEMA shard3", "DROP SCHEMA shard3", node="b"):
        assert "shard3" in preflight_fleet.only("schema_in_the_way", "fleet")
    renamed = "ALTER SCHEMA shard3 RENAME TO astray"
    with preflight_fleet.having(renamed, "ALTER SCHEMA astray RENAME TO shard3"):
        told = preflight_fleet.refused(part="fleet")
        assert "shard3" in told["shards_missing"]
