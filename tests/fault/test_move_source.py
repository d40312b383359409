"""The source ends, or hangs, while shards move from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from shardctl.access import fence
from tests.fixtures.harming import frozen, kill, processes, retry_soon
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

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
    moving: MovingFleet, point: str, verb: str
) -> None:
    server = moving.servers["a"].server
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        assert mover.end() == 3, mover.said
        assert moving.paused() == [] or moving.guards()
        if verb == "resume" and point in {"span promote begin", "span slot begin"}:
            clients.wait_served({2, 3})
        server.start()
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


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
    moving: MovingFleet, point: str, verb: str
) -> None:
    server = moving.servers["a"].server
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        server.start()
        assert mover.end() == 3, mover.said
        assert moving.state() == "undone"
        clients.wait_served()
        assert moving.guards() == []
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize("point", ["span fence begin", "span mark begin", "span map begin"])
def test_a_source_that_hangs(moving: MovingFleet, point: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen(lambda: processes(moving.servers["a"].server.data_directory)):
            mover.go()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S)
            if point == "span map begin":
                clients.wait_served({2, 3})
        if mover.end() != 0:
            finish(moving, "resume")
        clients.wait_served()
    if point == "span fence begin":
        assert {line.split(":")[0] for line in mover.said} & {"FenceTooLate", "NotAtCutover"}
    # A guard in a source that hangs lifts no fence before its clients go on, too.
    assert clients.codes() <= (FENCE if point == "span mark begin" else set()), clients.errors()
    prove(moving, clients)


def test_a_source_that_comes_to_its_fence_too_late(moving: MovingFleet) -> None:
    point = "span fence begin"
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        before = moving.journal()
        assert before is not None
        soon = time.monotonic() + 10
        with moving.log_in("a", user="postgres") as session, pytest.raises(fence.FenceTooLate):
            fence.put_up(
                session,
                "a",
                before.id,
                revision=before.revision,
                deadline=soon,
                not_after=fence.not_after(session, time.monotonic() - 0.1),
            )
        assert moving.journal() == before
        mover.go()
        if mover.end() != 0:
            finish(moving, "resume")
    assert clients.errors() == []
    prove(moving, clients)
