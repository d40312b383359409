"""The limit of WAL that a source keeps for a move: reached, with shardctl and without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.plan import CLONE, STREAM
from shardctl.state import journal, leash
from tests.fixtures.moves import streamed
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

METHODS = pytest.mark.parametrize("limited", [CLONE, STREAM], indirect=True)
SLOTS = "SELECT slot_name::text FROM pg_replication_slots"


@pytest.fixture
def limited(request: pytest.FixtureRequest, fleet_points: MovingFleet) -> Iterator[MovingFleet]:
    """Give a fleet of whose moves little WAL is kept."""
    if request.param == STREAM:
        streamed.use(fleet_points)
    fleet_points.choice = dataclasses.replace(fleet_points.choice, max_wal_bytes=8 << 20)
    yield fleet_points
    streamed.end(fleet_points)


def exceed(fleet: MovingFleet) -> None:
    """Write more than the limit while the target reads none of it, until the slot is dropped."""
    with fleet.connect("b") as session:
        for (name,) in session.execute("SELECT subname::text FROM pg_subscription").fetchall():
            session.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
    fleet.ask("a", "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, 16000)")
    fleet.ask("a", "DROP TABLE filled")
    wait_for(lambda: not fleet.ask("a", SLOTS))
    wait_for(lambda: (move := fleet.journal()) and journal.wal_limit(move))


@pytest.mark.parametrize("limited", [STREAM], indirect=True)
@pytest.mark.parametrize("point", [streamed.REST, "step follow run", "step cutover run"])
def test_a_move_that_reaches_the_limit_aborts_itself(limited: MovingFleet, point: str) -> None:
    mover = limited.mover("start", point)
    mover.at(point)
    exceed(limited)
    mover.go()
    assert mover.end() == 1
    assert any(line.startswith("WalLimitReached") for line in mover.said), mover.said
    assert limited.state() == "aborted"
    assert limited.owner == "a"
    assert streamed.left(limited) == []


@METHODS
def test_a_restart_of_the_source_ends_the_guard_and_verify_misses_it(limited: MovingFleet) -> None:
    mover = limited.mover("start", "step follow run")
    mover.at("step follow run")
    [(slot,)] = limited.ask("a", SLOTS)
    with limited.connect("a") as session:
        assert leash.is_armed(session, slot)
    mover.kill()
    limited.servers["a"].stop()
    limited.servers["a"].start()
    assert slot in {f.object for f in limited.verify() if f.code == "slot_unwatched"}
    going = limited.mover("resume", "step follow run")
    going.at("step follow run")
    with limited.connect("a") as session:
        assert leash.is_armed(session, slot)
    going.go()
    assert going.end() == 0
    with limited.connect("a") as session:
        wait_for(lambda: not leash.is_armed(session, slot))
