"""The limit of WAL that a source keeps for a move: reached, with shardctl and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state import leash
from tests.fixtures.moves.harm import kill
from tests.fixtures.moves.limits import exceed, limit, slots
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.moves.stopping import MovingFleet


@pytest.fixture
def limited(fleet_points: MovingFleet) -> MovingFleet:
    """Give a fleet of whose moves little WAL is kept."""
    return limit(fleet_points)


def unfinished(fleet: MovingFleet) -> list[Finding]:
    return [f for f in fleet.verify() if f.code in {"move_unfinished", "slot_unwatched"}]


def test_one_that_was_killed_and_reached_it_says_so_and_copies_again(limited: MovingFleet) -> None:
    mover = limited.mover("start", "step cutover run")
    mover.at("step cutover run")
    mover.kill()
    kill(limited.place)
    exceed(limited)
    [finding] = unfinished(limited)
    assert ", more than the limit of 8,192 kB, and was dropped" in finding.actual
    going = limited.mover("resume")
    assert going.end() == 0
    assert any("was dropped at its limit" in line for line in going.said)
    assert limited.state() == "done"
    assert limited.owner == "c"


def test_a_restart_of_the_source_ends_the_guard_and_verify_misses_it(limited: MovingFleet) -> None:
    mover = limited.mover("start", "step follow run")
    mover.at("step follow run")
    [slot] = slots(limited)
    with limited.log_in("a", user="postgres") as session:
        assert leash.is_armed(session, slot)
    mover.kill()
    assert [f.code for f in unfinished(limited)] == ["move_unfinished"]
    limited.servers["a"].stop()
    limited.servers["a"].start()
    found = {f.code: f for f in unfinished(limited)}
    assert found["slot_unwatched"].object == slot
    assert "its guard is not running" in found["slot_unwatched"].actual
    going = limited.mover("resume", "step follow run")
    going.at("step follow run")
    with limited.log_in("a", user="postgres") as session:
        assert leash.is_armed(session, slot)
    going.go()
    assert going.end() == 0
    with limited.log_in("a", user="postgres") as session:
        wait_for(lambda: not leash.is_armed(session, slot))
