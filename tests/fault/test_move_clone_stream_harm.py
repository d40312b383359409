"""Source and target die, and the stream loses its slot, while a clone hands over by stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.again import killed_again_and_again
from tests.fixtures.moves.harm import kill, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, GONE, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

APART, EVERY = 36, 3
"""As in `test_move_stream_killed_again.py`."""


@pytest.mark.parametrize("first", range(1, APART, EVERY))
def test_a_move_killed_before_any_effect_gets_to_its_end(
    fleet_clone_stream: MovingFleet, first: int
) -> None:
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        assert killed_again_and_again(fleet, clients, "resume", first, APART, target="c") > 3
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == clone_streamed.TARGET
    assert streamed.left(fleet) == []
    prove(fleet, clients)


@pytest.mark.parametrize("point", ["span decide begin", "step promote ran"])
@pytest.mark.parametrize("first", range(1, 12, EVERY))
def test_an_abort_killed_before_any_effect_deletes_the_clone(
    fleet_clone_stream: MovingFleet, first: int, point: str
) -> None:
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        killed_again_and_again(fleet, clients, "abort", first, 12, target="a")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == "a"
    assert not fleet.place.exists()
    assert streamed.left(fleet) == []
    prove(fleet, clients)


def kill_at(
    fleet: MovingFleet,
    point: str,
    verb: str,
    end: Callable[[], object],
    back: Callable[[], object] = lambda: None,
) -> None:
    """Kill a server at a point of a move, let it come back while that goes on, and end the move."""
    retry_soon(fleet)
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        end()
        mover.go()
        back()
        mover.end(seconds=120)
        finish(fleet, verb)
        clients.wait_served()
    assert clients.codes() <= FENCE | GONE, clients.errors()
    assert fleet.owner == ("a" if verb == "abort" else "c")
    assert streamed.left(fleet) == []
    prove(fleet, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span pause begin", "resume"),
        ("step promote ran", "abort"),
        ("step follow run", "resume"),
        ("step open ran", "abort"),
        ("span drain begin", "resume"),
        ("span decide begin", "resume"),
        ("span claim begin", "resume"),
        ("span route begin", "resume"),
        ("step rehearse run", "resume"),
    ],
)
def test_a_clone_whose_server_is_killed(
    fleet_clone_stream: MovingFleet, point: str, verb: str
) -> None:
    kill_at(fleet_clone_stream, point, verb, lambda: kill(fleet_clone_stream.place))


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step promote ran", "resume"),
        ("step promote run", "abort"),
        ("step promote run", "resume"),
        ("span drain begin", "resume"),
        ("step open run", "abort"),
        ("span claim begin", "resume"),
    ],
)
def test_a_source_that_is_killed_and_back(
    fleet_clone_stream: MovingFleet, point: str, verb: str
) -> None:
    server = fleet_clone_stream.servers["a"].server
    kill_at(fleet_clone_stream, point, verb, lambda: kill(server.data_directory), server.start)


@pytest.mark.parametrize("point", ["step follow run", "step open run"])
def test_a_lost_slot_lets_the_clone_be_made_again(
    fleet_clone_stream: MovingFleet, point: str
) -> None:
    fleet = fleet_clone_stream
    with Clients(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        identity = fleet.ask("c", "SELECT identity FROM shardctl.cluster")
        for (name,) in fleet.ask("c", "SELECT subname FROM pg_subscription"):
            fleet.ask("c", f"ALTER SUBSCRIPTION {name} DISABLE")
        wait_for(lambda: not fleet.ask("a", "SELECT 1 FROM pg_replication_slots WHERE active"))
        fleet.ask("a", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        finish(fleet, "resume")
        clients.wait_served()
        assert fleet.ask("c", "SELECT identity FROM shardctl.cluster") != identity
    assert clients.errors() == []
    assert fleet.owner == "c"
    assert streamed.left(fleet) == []
    prove(fleet, clients)
