"""Source and target hang, or are killed and away for a while, in every part of a streamed move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves import streamed
from tests.fixtures.moves.again import restarted_at_points
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import frozen, kill, processes, retry_soon
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, GONE

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}


@pytest.mark.parametrize(
    "point",
    ["span drain begin", "step copy run", "step follow run", "span ping begin",
     "span decide begin", "span route begin"],
)  # fmt: skip
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_server_that_hangs_for_longer_than_the_budget(
    fleet_stream: MovingFleet, node: str, point: str
) -> None:
    streamed.shorten_pause(fleet_stream)
    directory = fleet_stream.servers[node].server.data_directory
    decided = False
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        with frozen(lambda: processes(directory)):
            mover.go()
            streamed.outlast(fleet_stream)
            if node == "b":
                # Behind the decision, nobody else can serve the moved shards.
                decided = fleet_stream.state() not in UNDOABLE
                clients.wait_served({0} if decided else {0, 2, 3}, seconds=streamed.SERVED_S)
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        clients.wait_served()
    # A guard in a source that hangs lifts no fence before its clients go on, too; and who logs in
    # to a server that hangs gives up after `connect_timeout`.
    served = node == "b" and not decided
    assert clients.codes() <= (set() if served else FENCE | {"08001"}), clients.errors()
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span drain begin", "resume"),
        (streamed.ROWS, "abort"),
        (streamed.REST, "resume"),
        ("step follow run", "abort"),
        ("span pause begin", "resume"),
        ("step confirm run", "resume"),
    ],
)
@pytest.mark.parametrize("node", ["b", "a"])
def test_a_server_that_is_killed_and_back_when_the_move_has_stopped(
    fleet_stream: MovingFleet, node: str, point: str, verb: str
) -> None:
    server = fleet_stream.servers[node].server
    retry_soon(fleet_stream)
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        assert mover.end(seconds=120) != 0, mover.said
        server.start()
        finish(fleet_stream, verb)
        clients.wait_served()
    assert clients.codes() <= FENCE | GONE, clients.errors()
    assert fleet_stream.owner == ("b" if verb == "resume" else "a")
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("first", range(streamed.ROUNDS))
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_server_that_is_killed_at_every_point_and_soon_back(
    fleet_stream: MovingFleet, node: str, first: int
) -> None:
    restarted_at_points(fleet_stream, node, streamed.POINTS[first :: streamed.ROUNDS])
