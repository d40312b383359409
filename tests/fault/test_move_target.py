"""The target ends, hangs, or has no room, while shards move to it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.harming import frozen, kill, processes, retry_soon, small_disk
from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

ANSWER_S = 3.0
"""How long a guard waits for an answer of a target that hangs."""


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step follow run +6", "resume"),
        ("span pause begin", "abort"),
        ("span replay begin", "resume"),
        ("span snapshot end", "abort"),
        ("span decide begin", "resume"),
        ("span promote begin", "resume"),
        ("span claim begin", "resume"),
        ("span settings begin", "resume"),
        ("span map begin", "resume"),
    ],
)
def test_a_target_that_is_killed(moving: MovingFleet, point: str, verb: str) -> None:
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(moving.place)
        mover.go()
        mover.end()
        clients.wait_served({0})
        if verb == "abort" or moving.state() in {"reserved", "undone"}:
            clients.wait_served()
            assert clients.errors() == []
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    ("point", "verb"), [("span replay begin", "abort"), ("span claim begin", "resume")]
)
def test_a_target_that_hangs(moving: MovingFleet, point: str, verb: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen(lambda: processes(moving.place)):
            mover.go()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S + ANSWER_S)
            clients.wait_served({0} if verb == "resume" else {0, 2, 3})
        if mover.end() != 0:
            finish(moving, verb)
        clients.wait_served()
    assert clients.codes() <= (FENCE if verb == "resume" else set()), clients.errors()
    prove(moving, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_target_whose_disk_is_full_during_the_copy(moving: MovingFleet, verb: str) -> None:
    folder = moving.place.parent / "disk"
    folder.mkdir()
    moving.place = folder / "c"
    moving.file.unlink()
    with small_disk(folder, "24m") as make_large, Clients(moving) as clients:
        mover = moving.mover("start")
        assert mover.end() == 3, mover.said
        assert any("CopyFailed" in line for line in mover.said), mover.said
        make_large()
        finish(moving, verb)
        clients.wait_served()
        assert clients.errors() == []
        prove(moving, clients)
        if verb == "resume":
            dataclasses.replace(moving.servers["a"].server, data_directory=moving.place).stop()
