"""A journal that was dropped by hand, and the slot of a move that only it knew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet

SLOT = "shardctl_5f3a9c1e"
TABLES = [
    f"shardctl.{table}"
    for table in ("event", "move", "move_progress", "move_step", "stream", "stream_copy")
]


@pytest.fixture
def orphaned(fleet_spares: MovedFleet) -> Iterator[MovedFleet]:
    """Give a fleet whose node a has a move's slot and no journal."""
    fleet_spares.execute("a", f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")
    fleet_spares.execute("a", f"DROP TABLE {', '.join(TABLES)}")
    yield fleet_spares
    fleet_spares.execute(
        "a", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    )


def test_a_command_that_looks_for_a_move_says_that_the_journal_is_missing(
    orphaned: MovedFleet,
) -> None:
    for words in (["resume"], ["abort", "--yes"]):
        done = orphaned.here("moves", *words)
        assert done.returncode == 2
        assert "shardctl.move" in done.stderr
