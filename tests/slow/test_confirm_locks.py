"""Confirm: what was moved is compared row for row, beside maintenance and DDL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from shardctl.moves import comparison, confirm
from shardctl.moves.confirm import CopiesDiffer

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


TABLES, ROWS = 2, 2
"""Of two moved shards, by their migration, and as the lab begins."""


def compared(world: MoveContext) -> tuple[int, int]:
    found = confirm.compare(world)
    assert found is not None
    return found.tables, found.rows


def test_a_table_that_the_targets_clients_altered_costs_its_own_comparison_only(
    fleet_own: Lab,
) -> None:
    world = fleet_own.up_to("confirm", [2, 3], "c")
    fleet_own.ask("c", "ALTER TABLE shard3.photos RENAME TO pictures")
    confirm.make(world)
    move = world.journal()
    assert move is not None
    assert move.proof == "forked"
    told = {"tables": TABLES - 1, "rows": 1, "uncompared": ["shard3.photos"]}
    assert (move.report or {}).items() >= told.items()
    world.close()


def test_a_large_table_is_compared_in_parts_and_ddl_passes_between_them(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_own.ask(
        "a",
        "CREATE TABLE shard2.large AS SELECT n, repeat('x', 1000) AS t "
        "FROM generate_series(1, 100) n",
    )
    monkeypatch.setattr(comparison, "BLOCKS", 4)
    world = fleet_own.up_to("confirm", [2, 3], "c")
    assert compared(world) == (TABLES + 1, ROWS + 100)
    ask, between = (
        comparison.Sessions.ask,
        [
            "ALTER TABLE shard2.large ADD COLUMN later integer DEFAULT 1",
            "UPDATE shard2.large SET t = ''; DELETE FROM shard2.large WHERE n < 50",
        ],
    )

    def after_a_part(
        self: comparison.Sessions, node: Any, session: Any, query: Any, **named: Any
    ) -> Any:
        found = ask(self, node, session, query, **named)
        if node == "c" and between and b"(4,0)" in query.as_bytes(session):
            fleet_own.ask("c", f"SET lock_timeout = '2s'; {between.pop(0)}")
        return found

    monkeypatch.setattr(comparison.Sessions, "ask", after_a_part)
    assert compared(world) == (TABLES + 1, ROWS + 100)
    assert between == []
    fleet_own.ask("a", f"DELETE FROM {world.plan.retired[0]}.large WHERE n = 77")
    with pytest.raises(CopiesDiffer, match=r"shard2\.large"):
        confirm.compare(world)
    world.close()


def test_a_shardctl_that_is_stopped_while_it_compares_leaves_no_lock(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = fleet_own.up_to("confirm", [2, 3], "c")
    fetch, statuses = psycopg.Cursor.fetchall, set[TransactionStatus]()

    def stopped(self: psycopg.Cursor[Any]) -> list[Any]:
        statuses.add(self.connection.info.transaction_status)
        return fetch(self)

    monkeypatch.setattr(psycopg.Cursor, "fetchall", stopped)
    assert compared(world) == (TABLES, ROWS)
    assert statuses == {TransactionStatus.IDLE}
    world.close()
