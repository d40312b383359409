"""Preflight of a healthy fleet, of several troubles at once, and of what all nodes say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import prediction, sub_step
from shardctl.moves.preflight import check as preflight
from shardctl.moves.sub_step import RoundTrips
from shardctl.pgbouncer import apply
from shardctl.state import journal, lock
from shardctl.state.journal import MoveState
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.preflight import Movable


PURPOSE = "shardctl move-shards by a test"

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


def record(preflight_fleet: Movable, node: str, plan: MovePlan) -> None:
    """Write a move into a node's journal."""
    with preflight_fleet.fleet.connect(node) as session:
        journal.open_move(
            session,
            move=plan.id,
            method="clone",
            source=plan.source,
            target=plan.target,
            shards=plan.shards,
            schemas=plan.schemas,
            retired=plan.retired,
            plan=plan.as_json(),
        )


@pytest.fixture
def all_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every round trip as near: on a busy machine, even one to its own servers is not."""
    monkeypatch.setattr(sub_step, "NEAR_MS", float("inf"))


@pytest.mark.usefixtures("all_near")
def test_a_healthy_fleet_is_told_what_the_move_will_be(preflight_pooled: Movable) -> None:
    facts = preflight_pooled.check()
    rows = preflight_pooled.fleet.query(
        "a",
        "SELECT right(nspname, 1)::int, sum(pg_relation_size(c.oid))"
        " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE nspname ~ '^shard[0-3]$' AND relkind IN ('r', 'S', 'i') GROUP BY 1",
    )
    sizes = dict(rows)
    assert facts.sizes == {2: sizes[2], 3: sizes[3]}
    assert facts.reclaimed_bytes == sum(sizes.values())
    assert facts.source_bytes > 20_000_000
    by_rate = facts.source_bytes / (200 * 1024 * 1024)
    assert by_rate < facts.predicted_copy_s < by_rate + 0.5
    assert facts.predicted_s > facts.predicted_copy_s
    # 2 shards that move and 2 that stay, 3 aliases of 11 that are paused, and a RELOAD.
    wanted = (
        70
        + 2 * prediction.CLONED_TABLE_MS
        + 2 * 0.17
        + 2 * 0.02
        + 3 * 0.07
        + 11 * 0.02
        + apply.reload_ms(11)
    )
    made, topology = preflight_pooled.plan(), preflight_pooled.topology
    assert prediction.pause_ms(topology, made, RoundTrips(), 2) == pytest.approx(wanted)
    assert facts.predicted_pause_ms == pytest.approx(wanted)
    assert facts.disk_free_bytes is not None
    assert facts.disk_free_bytes > facts.source_bytes
    (pooler,) = facts.poolers
    assert (pooler.name, pooler.aliases, pooler.clients) == ("p1", 11, 0)
    assert pooler.paused == ("preflight_a", "shard2", "shard3")
    assert pooler.version.startswith("1.")
    assert all("node c" in note for note in facts.notes[:3])


def test_nothing_is_changed(preflight_pooled: Movable) -> None:
    fleet = preflight_pooled.fleet
    pooler = fleet.pg_bouncer
    before = {node: fleet.query(node, EVERYTHING) for node in "ab"}
    files = {f: f.stat().st_mtime_ns for f in pooler.config.parent.iterdir() if f.suffix == ".ini"}
    reloads = pooler.log().count("RELOAD command issued")
    preflight_pooled.check()
    preflight_pooled.choose(max_rate="fast")
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
    preflight_pooled.choose(max_rate="fast")
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


def test_another_move_that_has_not_ended(preflight_fleet: Movable) -> None:
    plan = dataclasses.replace(preflight_fleet.plan(), id="5f3a9c1e")
    record(preflight_fleet, "b", plan)
    try:
        assert "5f3a9c1e" in preflight_fleet.only_fleet("move_unfinished")
        b = [NodeName("b")]
        with lock.held(preflight_fleet.topology, b, command=f"move-shards {plan.id}"):
            assert "--lock-wait" in preflight_fleet.only_fleet("move_unfinished")
        topology = preflight_fleet.topology
        mine = dataclasses.replace(preflight_fleet.plan(), id="5f3a9c1e")
        preflight.check(topology, mine, purpose=PURPOSE)  # its own record is no other move
        # What one node knows to be over is over, though another has an older copy.
        record(preflight_fleet, "a", plan)
        with preflight_fleet.fleet.connect("a") as session:
            journal.advance(session, plan.id, [MoveState.reserved], MoveState.aborted)
        assert preflight_fleet.beside_fit(fleet=preflight_fleet.look_at_fleet()) == {}
    finally:
        for node in "ab":
            preflight_fleet.fleet.execute(node, "DELETE FROM shardctl.move")


def test_a_node_without_a_journal(preflight_fleet: Movable) -> None:
    with preflight_fleet.having(
        "ALTER TABLE shardctl.move RENAME TO was_move",
        "ALTER TABLE shardctl.was_move RENAME TO move",
        node="b",
    ):
        assert "shardctl.move" in preflight_fleet.only("node_unavailable")


def test_shards_that_are_not_where_they_should_be(preflight_fleet: Movable) -> None:
    with preflight_fleet.having("CREATE SCHEMA shard3", "DROP SCHEMA shard3", node="b"):
        assert "shard3" in preflight_fleet.only_fleet("schema_in_the_way")
    renamed = "ALTER SCHEMA shard3 RENAME TO astray"
    with preflight_fleet.having(renamed, "ALTER SCHEMA astray RENAME TO shard3"):
        told = preflight_fleet.beside_fit(fleet=preflight_fleet.look_at_fleet())
        assert "shard3" in told["shards_missing"]
