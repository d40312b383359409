"""Confirm beside maintenance and DDL: neither waits for the comparison, and no circle closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.fanout import Silent
from shardctl.moves import comparison, confirm, confirm_sessions
from shardctl.moves.confirm import CopiesDiffer
from shardctl.moves.context import Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.spares import MovedFleet

TABLES = 2
"""Of two moved shards, by their migration."""


class Doing(Silent):
    """A progress that does something once, when so many tables of a node were compared."""

    def __init__(self, node: str, after: int, do: Callable[[], object]) -> None:
        self._node = node
        self._left = after
        self._do = do
        self.done = False

    def expect(self, key: str, phase: str, total: int, unit: str = "") -> None:
        """Count what comes."""

    def advance(self, key: str, done: int = 1) -> None:
        if key == self._node:
            self._left -= done
            if self._left == 0:
                self._do()
                self.done = True


def run(fleet: MovedFleet, node: str, statement: str) -> Callable[[], None]:
    """Give what runs a statement that may not wait for a lock for long."""

    def do() -> None:
        with fleet.connect(node) as session:
            session.execute("SET lock_timeout = '2s'")
            session.execute(statement.encode())

    return do


def fill(fleet: MovedFleet, *tables: str) -> None:
    """Give shard 2 more tables, of some blocks each."""
    for table in tables:
        fleet.execute(
            "a",
            f"CREATE TABLE shard2.{table} AS SELECT n, repeat('x', 1000) AS t "
            "FROM generate_series(1, 100) n",
        )


def compared(world: MoveContext) -> tuple[int, int]:
    found = confirm.compare(world)
    assert found is not None
    return found.tables, found.rows


@pytest.mark.parametrize(
    ("node", "after", "statement"),
    [
        ("a", 1, "VACUUM FULL pg_class"),
        ("c", 1, "VACUUM FULL pg_class"),
        ("c", TABLES, "ALTER TABLE shard2.photos ADD COLUMN later integer DEFAULT 1"),
    ],
)
def test_what_wants_a_table_for_itself_does_not_wait_for_the_comparison(
    fleet_spares: MovedFleet, node: str, after: int, statement: str
) -> None:
    world = fleet_spares.cut_over([2, 3], "c")
    world.progress = doing = Doing(node, after, run(fleet_spares, node, statement))
    assert compared(world) == (TABLES, 0)
    assert doing.done
    world.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE shard3.photos",
        "ALTER TABLE shard3.photos RENAME TO pictures",
        (
            "ALTER TABLE shard3.photos ADD COLUMN later integer DEFAULT 1;"
            "ALTER TABLE shard3.photos RENAME COLUMN user_id TO owner_id"
        ),
    ],
)
def test_a_table_that_the_targets_clients_altered_costs_its_own_comparison_only(
    fleet_spares: MovedFleet, statement: str
) -> None:
    for shard in (2, 3):
        fleet_spares.execute("a", f"INSERT INTO shard{shard}.photos (user_id) VALUES (1)")
    world = fleet_spares.cut_over([2, 3], "c")
    run(fleet_spares, "c", statement)()
    confirm.make(world)
    move = world.journal()
    assert move is not None
    assert move.proof == "forked"
    told = {"tables": TABLES - 1, "rows": 1, "uncompared": ["shard3.photos"]}
    assert (move.report or {}).items() >= told.items()
    world.close()


def test_a_large_table_is_compared_in_parts_and_ddl_passes_between_them(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fleet_spares, "large")
    monkeypatch.setattr(comparison, "BLOCKS", 4)
    world = fleet_spares.cut_over([2, 3], "c")
    assert compared(world) == (TABLES + 1, 100)
    ask, between = (
        confirm_sessions.Sessions.ask,
        [
            "VACUUM FULL shard2.large",
            "ALTER TABLE shard2.large ADD COLUMN later integer DEFAULT 1",
            "UPDATE shard2.large SET t = ''; DELETE FROM shard2.large WHERE n < 50",
        ],
    )

    def after_a_part(
        self: confirm_sessions.Sessions, node: Any, session: Any, query: Any, **named: Any
    ) -> Any:
        found = ask(self, node, session, query, **named)
        if node == "c" and between and b"(4,0)" in query.as_bytes(session):
            run(fleet_spares, "c", between.pop(0))()
        return found

    monkeypatch.setattr(confirm_sessions.Sessions, "ask", after_a_part)
    assert compared(world) == (TABLES + 1, 100)
    assert between == []
    fleet_spares.execute("a", f"DELETE FROM {world.plan.retired[0]}.large WHERE n = 77")
    with pytest.raises(CopiesDiffer, match=r"shard2\.large: 99 rows on a, 100 on c"):
        confirm.compare(world)
    world.close()


def test_a_snapshot_that_is_lost_while_tables_are_compared_gives_no_proof(
    fleet_spares: MovedFleet,
) -> None:
    world = fleet_spares.cut_over([2, 3], "c")
    holder = world.sessions[world.plan.target, Use.snapshot].info.backend_pid
    end = f"SELECT pg_terminate_backend({holder}, 5000)"
    world.progress = Doing("c", 1, run(fleet_spares, "c", end))
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "SESSIONS", 1)
        assert confirm.compare(world) is None
    world.close()
