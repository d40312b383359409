"""The pooler ends, another operator is at its console, or its guard ends, in a streamed move."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from tests.fixtures.moves import streamed
from tests.fixtures.moves.again import disturb
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import retry_soon
from tests.fixtures.moves.loads import log_in_fully
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

LOST = {"", "08001", "08006"}
"""The SQLSTATEs of connections that break off, and of logins that find nobody."""
CLOSED = LOST | {"08P01", "3D000"}
"""The same of a pooler that closes or refuses connections to an alias."""
RESUMED = CLOSED | FENCE
"""What a RESUME or RECONNECT in the middle of a move lets clients meet.

With a RESUME they go on to the source, where they find the fence. Both also let logins to the
source begin; the pause or the move's RELOAD breaks these off, and PgBouncer takes that for a node
that is away.
"""


def kill_pooler(fleet: MovingFleet) -> None:
    fleet.pg_bouncer.signal(signal.SIGKILL)
    wait_for(lambda: fleet.pg_bouncer.server.running() is None)


def kill_guard(fleet: MovingFleet) -> None:
    found = fleet.guard_processes()
    assert found, "there is no guard"
    while found:
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not set(found) & set(fleet.guard_processes()))  # noqa: B023  # it ends here
        found = fleet.guard_processes()


@pytest.mark.parametrize(
    "point",
    ["span decide begin", "step copy run", streamed.REST, "step follow run",
     "span stage files begin", "span pause begin", "span fence begin", "span drain begin",
     "span arrive begin", "span claim begin", "span route begin", "span route begin +2"],
)  # fmt: skip
def test_a_pooler_that_is_killed_and_started_again_at_once(
    fleet_stream: MovingFleet, point: str
) -> None:
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        kill_pooler(fleet_stream)
        fleet_stream.pg_bouncer.start()
        mover.go()
        if mover.end() != 0:
            assert not point.startswith("step"), mover.said
            finish(fleet_stream, "resume")
        clients.wait_served()
    # What was paused goes on, and finds the fence until that is lifted or the guard routes.
    assert clients.codes() <= FENCE | LOST, clients.errors()
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("first", range(streamed.ROUNDS))
def test_a_pooler_that_is_killed_at_every_point_and_soon_back(
    fleet_stream: MovingFleet, first: int
) -> None:
    def restart() -> None:
        kill_pooler(fleet_stream)
        fleet_stream.pg_bouncer.start()

    with Busy(fleet_stream) as clients:
        disturb(fleet_stream, streamed.POINTS[first :: streamed.ROUNDS], restart)
        finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | LOST, clients.errors()
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span arrive begin", "abort"),
        ("span claim begin", "resume"),
        ("step cutover run", "resume"),
        ("span route begin", "resume"),
    ],
)
def test_a_pooler_that_is_away_until_the_move_has_stopped(
    fleet_stream: MovingFleet, point: str, verb: str
) -> None:
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        kill_pooler(fleet_stream)
        mover.go()
        assert mover.end() != 0, mover.said
        fleet_stream.pg_bouncer.start()
        finish(fleet_stream, verb)
        clients.wait_served()
    assert clients.codes() <= FENCE | LOST, clients.errors()
    assert fleet_stream.owner == ("b" if verb == "resume" else "a")
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize(
    ("point", "command", "codes"),
    [
        ("span pause begin", "PAUSE shard2", set()),
        ("step follow run", "PAUSE shard2", set()),
        ("span fence begin", "RESUME shard2", RESUMED),
        ("span claim begin", "RESUME shard2", RESUMED),
        ("span route begin", "RESUME shard2", RESUMED),
        ("span serve begin", "PAUSE shard2", set()),
        ("span arrive begin", "KILL shard2", CLOSED | FENCE),
        ("span drain begin", "RECONNECT", RESUMED),
        ("span look begin", "RESUME shard2", RESUMED),
        ("span decide begin", "RELOAD", set()),
    ],
)
def test_another_operator_at_the_console_keeps_no_client_waiting(
    fleet_stream: MovingFleet, point: str, command: str, codes: set[str]
) -> None:
    retry_soon(fleet_stream)
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        if command.startswith("PAUSE"):
            log_in_fully(fleet_stream, ShardId(2))
        fleet_stream.pg_bouncer.admin(command)
        mover.go()
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        if (point, command) == ("span serve begin", "PAUSE shard2"):
            # Behind the move's own RESUME it is that operator's to end.
            fleet_stream.pg_bouncer.admin("RESUME shard2")
        clients.wait_served()
    assert clients.codes() <= codes, clients.errors()
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("dies", [False, True], ids=["alone", "with the process"])
@pytest.mark.parametrize("point", ["span claim begin", "span pause begin", "span arrive begin"])
def test_a_guard_that_is_killed(fleet_stream: MovingFleet, point: str, *, dies: bool) -> None:
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        kill_guard(fleet_stream)
        if dies:
            mover.kill()
            # The guard in the source lifts the fence; nobody is left who could end the pause.
            wait_for(lambda: fleet_stream.state() not in {"fenced", "drained"}, seconds=SERVED_S)
        else:
            mover.go()
        if dies or mover.end() != 0:
            finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)
