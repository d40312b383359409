"""The limit of WAL that a source keeps for a clone that hands over by stream, in every phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import limits, streamed
from tests.fixtures.moves.clone_streamed import BRANCHED, TARGET
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

SLOTS = {
    "step promote run": 1,  # that of the copy
    BRANCHED: 2,
    "step follow run": 1,  # that of the stream
    "step cutover run": 1,
}


@pytest.fixture
def limited(fleet_clone_stream: MovingFleet) -> MovingFleet:
    """Give a fleet of whose moves little WAL is kept."""
    return limits.limit(fleet_clone_stream)


def exceed(fleet: MovingFleet, point: str) -> None:
    """Write more than the limit while the clone reads none of it."""
    assert len(limits.slots(fleet)) == SLOTS[point]
    if fleet.runs(TARGET):
        for (name,) in fleet.ask(TARGET, "SELECT subname::text FROM pg_subscription"):
            fleet.ask(TARGET, f"ALTER SUBSCRIPTION {name} DISABLE")
    limits.exceed(fleet)


@pytest.mark.parametrize("point", SLOTS)
def test_a_clone_that_reaches_the_limit_is_deleted(limited: MovingFleet, point: str) -> None:
    with Clients(limited, target=TARGET) as clients:
        mover = limited.mover("start", point)
        mover.at(point)
        exceed(limited, point)
        mover.go()
        assert mover.end(seconds=120) == 1, mover.said
        assert any("WalLimitReached" in line for line in mover.said), mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert limited.state() == "aborted"
    assert streamed.left(limited) == []
    prove(limited, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("point", SLOTS)
def test_one_that_reached_it_behind_a_killed_process_is_made_again_or_deleted(
    limited: MovingFleet, point: str, verb: str
) -> None:
    with Clients(limited, target=TARGET) as clients:
        mover = limited.mover("start", point)
        mover.at(point)
        mover.kill()
        wait_for(lambda: not limited.is_locked())
        exceed(limited, point)
        finish(limited, verb)
        clients.wait_served()
    assert clients.errors() == []
    assert limited.owner == (TARGET if verb == "resume" else "a")
    assert streamed.left(limited) == []
    prove(limited, clients)
