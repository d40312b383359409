"""A streamed move whose process stops, or whose servers are killed, while shards change hands."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.cutover import STREAM
from tests.fixtures.moves import streamed
from tests.fixtures.moves.harm import kill, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

PAUSED = [f"span {one.name} begin" for one in STREAM.between("pause", "route")]


@pytest.mark.parametrize("point", PAUSED)
def test_a_process_that_stops_and_wakes_up_too_late_does_no_harm(
    fleet_stream: MovingFleet, point: str
) -> None:
    """Wherever it stops, clients get no error: guards undo, or claim and route."""
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        clients.wait_served()
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "b"
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize(
    "point",
    ["step copy ran", "span ping begin", "span fence begin", "span arrive begin",
     "span decide begin", "span claim begin", "span route begin", "span stream begin"],
)  # fmt: skip
def test_a_server_that_is_killed_and_soon_back_loses_nothing(
    fleet_stream: MovingFleet, node: str, point: str
) -> None:
    server = fleet_stream.servers[node].server
    retry_soon(fleet_stream)
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        server.start()
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        clients.wait_served()
    assert fleet_stream.owner == "b"
    # What the server said to whom it threw out, and the fence's errors, as long as it was up.
    assert clients.codes() <= {"", "08006", "08P01", "57P01", "57P02", "57P03", *FENCE}
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)
