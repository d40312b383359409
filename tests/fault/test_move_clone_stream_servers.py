"""Servers that hang while a clone is made and hands over by stream, and one that is restarted."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import frozen, processes
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}


@pytest.mark.parametrize(
    ("node", "point"),
    [
        ("c", "span drain begin"),
        *(("a", f"step {name} run") for name in ("clone", "promote", "follow", "open")),
        *(("c", f"step {name} run") for name in ("follow", "open")),
        *((node, f"span {name} begin") for node in "ac" for name in ("decide", "claim", "route")),
    ],
)
def test_a_server_that_hangs_for_longer_than_the_budget(
    fleet_clone_stream: MovingFleet, node: str, point: str
) -> None:
    fleet = fleet_clone_stream
    streamed.shorten_pause(fleet)
    directory = fleet.servers["a"].server.data_directory if node == "a" else fleet.place
    decided = False
    with Busy(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        with frozen(lambda: processes(directory)):
            mover.go()
            streamed.outlast(fleet)
            if node == "c":
                decided = fleet.state() not in UNDOABLE
                clients.wait_served({0} if decided else {0, 2, 3}, seconds=streamed.SERVED_S)
        if mover.end(seconds=120) != 0:
            finish(fleet, "resume")
        clients.wait_served()
    served = node == "c" and not decided
    assert clients.codes() <= (set() if served else FENCE | {"08001"}), clients.errors()
    assert fleet.owner == "c"
    prove_streamed(fleet, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("point", ["step follow run", "step open ran", "span decide begin"])
@pytest.mark.parametrize("then", ["stopped", "restarted"])
def test_a_clone_whose_server_is_stopped_behind_a_killed_process(
    fleet_clone_stream: MovingFleet, point: str, verb: str, then: str
) -> None:
    fleet = fleet_clone_stream
    with Busy(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.kill()
        clients.wait_served()
        wait_for(lambda: not fleet.is_locked())
        clone_streamed.control(fleet, "stop")
        if then == "restarted":
            clone_streamed.control(fleet, "start")
        finish(fleet, verb)
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if verb == "abort" else "c")
    assert fleet.place.exists() == (verb == "resume")
    prove_streamed(fleet, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_process_killed_as_soon_as_the_clone_has_promoted_itself(
    fleet_clone_stream: MovingFleet, verb: str
) -> None:
    """The clone promotes itself at its recovery target; nothing has noted that yet."""
    fleet = fleet_clone_stream
    point = "step promote run"
    with Busy(fleet, target="c") as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.go()
        wait_for(lambda: processes(fleet.place))
        mover.signal(signal.SIGSTOP)
        wait_for(lambda: list((fleet.place / "pg_wal").glob("*.history")))
        mover.kill()
        wait_for(lambda: not fleet.is_locked())
        finish(fleet, verb)
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == ("a" if verb == "abort" else "c")
    prove_streamed(fleet, clients)
