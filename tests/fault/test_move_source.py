"""The source ends, or hangs, while shards move from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from shardctl.access import fence
from tests.fixtures.moves.harm import frozen, kill, processes, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step follow run", "abort"),
        ("span pause begin", "resume"),
        ("span promote begin", "resume"),
        ("span slot begin", "resume"),
    ],
)
def test_a_source_that_is_killed_and_is_back_when_the_move_has_stopped(
    fleet_points: MovingFleet, point: str, verb: str
) -> None:
    server = fleet_points.servers["a"].server
    retry_soon(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        assert mover.end() == 3, mover.said
        assert fleet_points.paused() == [] or fleet_points.guards()
        if verb == "resume" and point in {"span promote begin", "span slot begin"}:
            clients.wait_served({2, 3})
        server.start()
        finish(fleet_points, verb)
        clients.wait_served()
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span fence begin", "resume"),
        ("span drain begin", "abort"),
        ("span replay begin", "resume"),
        ("span decide begin", "abort"),
    ],
)
def test_a_source_that_is_killed_and_is_soon_back_has_no_fence(
    fleet_points: MovingFleet, point: str, verb: str
) -> None:
    server = fleet_points.servers["a"].server
    retry_soon(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        server.start()
        assert mover.end() == 3, mover.said
        assert fleet_points.state() == "undone"
        clients.wait_served()
        assert fleet_points.guards() == []
        finish(fleet_points, verb)
        clients.wait_served()
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)


@pytest.mark.parametrize("point", ["span fence begin", "span mark begin", "span map begin"])
def test_a_source_that_hangs(fleet_points: MovingFleet, point: str) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        with frozen(lambda: processes(fleet_points.servers["a"].server.data_directory)):
            mover.go()
            wait_for(lambda: fleet_points.paused() == [], seconds=SERVED_S)
            if point == "span map begin":
                clients.wait_served({2, 3})
        if mover.end() != 0:
            finish(fleet_points, "resume")
        clients.wait_served()
    if point == "span fence begin":
        assert {line.split(":")[0] for line in mover.said} & {"FenceTooLate", "NotAtCutover"}
    # A guard in a source that hangs lifts no fence before its clients go on, too.
    assert clients.codes() <= (FENCE if point == "span mark begin" else set()), clients.errors()
    prove(fleet_points, clients)


def test_a_source_that_comes_to_its_fence_too_late(fleet_points: MovingFleet) -> None:
    point = "span fence begin"
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        before = fleet_points.journal()
        assert before is not None
        soon = time.monotonic() + 10
        with (
            fleet_points.log_in("a", user="postgres") as session,
            pytest.raises(fence.FenceTooLate),
        ):
            fence.put_up(
                session,
                "a",
                before.id,
                revision=before.revision,
                deadline=soon,
                not_after=fence.not_after(session, time.monotonic() - 0.1),
            )
        assert fleet_points.journal() == before
        mover.go()
        if mover.end() != 0:
            finish(fleet_points, "resume")
    assert clients.errors() == []
    prove(fleet_points, clients)
