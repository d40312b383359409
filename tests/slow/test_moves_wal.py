"""The limit of WAL that a source keeps for a move: reached, with shardctl and without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.state import journal
from tests.fixtures.moves import streamed
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

SLOTS = "SELECT slot_name::text FROM pg_replication_slots"


@pytest.fixture
def limited(fleet_points: MovingFleet) -> Iterator[MovingFleet]:
    """Give a fleet of whose moves little WAL is kept."""
    streamed.use(fleet_points)
    fleet_points.choice = dataclasses.replace(fleet_points.choice, max_wal_bytes=8 << 20)
    yield fleet_points
    streamed.end(fleet_points)


def test_a_move_that_reaches_the_limit_aborts_itself(limited: MovingFleet) -> None:
    mover = limited.mover("start", "step follow run")
    mover.at("step follow run")
    with limited.connect("b") as session:  # the target reads none of what is written
        for (name,) in session.execute("SELECT subname::text FROM pg_subscription").fetchall():
            session.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
    limited.ask(
        "a", "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, 16000)"
    )
    limited.ask("a", "DROP TABLE filled")
    wait_for(lambda: not limited.ask("a", SLOTS))
    wait_for(lambda: (move := limited.journal()) and journal.wal_limit(move))
    mover.go()
    assert mover.end() == 1
    assert any(line.startswith("WalLimitReached") for line in mover.said), mover.said
    assert limited.state() == "aborted"
    assert limited.owner == "a"
    assert streamed.left(limited) == []
