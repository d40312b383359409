"""A journal that was dropped by hand, and the slot of a move that only it knew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

SLOT = "shardctl_5f3a9c1e"
TABLES = [
    f"shardctl.{table}"
    for table in ("event", "move", "move_progress", "move_step", "stream", "stream_copy")
]


def test_a_command_that_looks_for_a_move_says_that_the_journal_is_missing(fleet_own: Lab) -> None:
    fleet_own.ask("a", f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")
    fleet_own.ask("a", f"DROP TABLE {', '.join(TABLES)}")
    for words in (["resume"], ["abort", "--yes"]):
        done = fleet_own.here("moves", *words)
        assert done.returncode == 2
        assert "shardctl.move" in done.stderr
