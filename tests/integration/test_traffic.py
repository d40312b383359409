"""The recorded load on real fleets: what it finds, and what it must not take for a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.traffic.client_routes import TABLE
from tests.fixtures.moves.loads import start, tables, wait_for_writes
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from shardctl.traffic.report import Report
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet


def spoiled(fleet: Fleet, spoil: Callable[[], None]) -> Report:
    """Run a short load, spoil what it wrote, and check it."""
    with start(fleet.topology()) as load:
        wait_for_writes(load)
        load.stop()
        spoil()
        return load.check()


def flaws(report: Report) -> dict[str, int]:
    return {flaw: number for flaw, number in report.verdict.counts.items() if number}


def test_a_load_does_not_begin_while_an_alias_is_paused(
    fleet_pooled: PooledFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardctl.traffic.load._WARM_UP_S", 1.0)
    with fleet_pooled.pg_bouncer.connect("shard2", user=fleet_pooled.role) as client:
        client.execute("SELECT 1")  # of a pool that nobody has used, a pause holds up the login
    with fleet_pooled.pg_bouncer.console() as console:
        console.pause("shard2", seconds=5)
        with raises_code("load_stuck"):
            start(fleet_pooled.topology())
        console.resume("shard2")
    assert tables(fleet_pooled, "a") == []


def test_a_table_of_somebody_else_is_not_touched(fleet_pooled: PooledFleet) -> None:
    fleet_pooled.execute("b", f"CREATE TABLE shard5.{TABLE} (mine text)")
    with raises_code("table_taken"):
        start(fleet_pooled.topology())
    assert tables(fleet_pooled, "a") == []
    assert tables(fleet_pooled, "b") == ["shard5"]


def a_row(fleet: Fleet, node: str, schema: str) -> int:
    [(number,)] = fleet.query(node, f"SELECT id FROM {schema}.{TABLE} ORDER BY id LIMIT 1")
    return int(number)


def test_a_row_moved_by_hand_to_another_shard_is_misplaced_and_lost(
    fleet_pooled: PooledFleet,
) -> None:
    def move() -> None:
        fleet_pooled.execute(
            "a",
            f"WITH gone AS (DELETE FROM shard1.{TABLE}"
            f" WHERE id = {a_row(fleet_pooled, 'a', 'shard1')}"
            f" RETURNING *) INSERT INTO shard2.{TABLE} SELECT id, client, -1, version, payload"
            " FROM gone",
        )

    assert flaws(spoiled(fleet_pooled, move)) == {"misplaced": 1, "lost": 1}
