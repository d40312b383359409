"""The limit of WAL that a source keeps for a streamed move: reached, with shardctl and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import limits, streamed
from tests.fixtures.moves.limits import limit

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet


@pytest.fixture
def limited(fleet_stream: MovingFleet) -> MovingFleet:
    """Give a fleet of whose moves little WAL is kept."""
    return limit(fleet_stream)


def stall(fleet: MovingFleet) -> None:
    """Let the target read no more of the stream, if it does."""
    with fleet.log_in("b", user="postgres") as session:
        for (name,) in session.execute("SELECT subname::text FROM pg_subscription").fetchall():
            session.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())


def exceed(fleet: MovingFleet) -> None:
    """Write more than the limit while the target reads none of it."""
    stall(fleet)
    limits.exceed(fleet)


@pytest.mark.parametrize("point", [streamed.REST, "step follow run", "step cutover run"])
def test_a_move_that_reaches_the_limit_aborts_itself(limited: MovingFleet, point: str) -> None:
    mover = limited.mover("start", point)
    mover.at(point)
    exceed(limited)
    mover.go()
    assert mover.end() == 1
    assert any(
        "WalLimitReached" in line and "more than its limit of 8 MB" in line for line in mover.said
    )
    assert limited.state() == "aborted"
    assert limited.owner == "a"
    assert streamed.left(limited) == []


def test_one_that_was_killed_and_reached_it_copies_again(limited: MovingFleet) -> None:
    mover = limited.mover("start", "step cutover run")
    mover.at("step cutover run")
    mover.kill()
    exceed(limited)
    going = limited.mover("resume")
    assert going.end() == 0, going.said
    assert limited.state() == "done"
    assert limited.owner == "b"
    assert streamed.left(limited) == []
