"""A pooler ends, hangs, or has files that cannot be written, while shards move."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.harming import frozen, immutable
from tests.fixtures.moving import add_pooler, finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import FENCE, MAX_PAUSE_S, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet
    from tests.fixtures.pooled import AddPooler

pytestmark = pytest.mark.fault

CONNECTION_LOST = ""
"""The SQLSTATE of an error of libpq's own."""


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span stage files begin", "resume"),
        ("span pause begin", "abort"),
        ("span fence begin", "resume"),
        ("span snapshot end", "abort"),
        ("span decide begin", "resume"),
        ("span promote begin", "resume"),
        ("span route begin +2", "resume"),
    ],
)
def test_a_pooler_that_is_killed_beside_one_that_lives(
    moving: MovingFleet, pooler_for: AddPooler, point: str, verb: str
) -> None:
    dying = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        dying.signal(signal.SIGKILL)
        wait_for(lambda: dying.server.running() is None)
        mover.go()
        assert mover.end() != 0
        clients.wait_served()
        dying.start()
        finish(moving, verb)
        clients.wait_served()
    assert clients.errors() == [], "of the other pooler"
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    "point",
    [
        "span pause begin",
        "span fence begin",
        "span snapshot end",
        "span decide begin",
        "span claim begin",
        "span route begin",
    ],
)
def test_the_only_pooler_that_is_killed_and_started_again_at_once(
    moving: MovingFleet, point: str
) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        moving.pg_bouncer.signal(signal.SIGKILL)
        wait_for(lambda: moving.pg_bouncer.server.running() is None)
        moving.pg_bouncer.start()
        mover.go()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        finish(moving, "resume")
        clients.wait_served()
    # What it had paused goes on, and finds the fence until that is lifted or the guard routes.
    assert clients.codes() <= FENCE | {CONNECTION_LOST}, clients.errors()
    assert moving.owner == "c"
    prove(moving, clients)


@pytest.mark.parametrize(
    "point", ["span pause begin", "span fence begin", "span decide begin", "span route begin"]
)
def test_a_pooler_that_hangs_beside_one_that_does_not(
    moving: MovingFleet, pooler_for: AddPooler, point: str
) -> None:
    hanging = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen(lambda: [hanging.pid]):
            mover.go()
            clients.wait_served()
        if mover.end() != 0:
            finish(moving, "resume")
        clients.wait_served()
    assert clients.errors() == [], "of the other pooler"
    assert clients.gap() < SERVED_S
    prove(moving, clients)


def test_a_staged_file_that_cannot_be_written(moving: MovingFleet, pooler_for: AddPooler) -> None:
    pooler = add_pooler(moving, pooler_for, "p2")
    staged = pooler.databases_file.with_name(f"{pooler.databases_file.name}.staged")
    with Clients(moving) as clients:
        staged.mkdir()
        mover = moving.mover("start")
        assert mover.end() == 3, mover.said
        assert any(str(staged) in line for line in mover.said), mover.said
        assert moving.state() == "undone"
        staged.rmdir()
        finish(moving, "abort")
    assert clients.errors() == []
    assert clients.gap() < MAX_PAUSE_S
    prove(moving, clients)


def test_a_file_of_aliases_that_cannot_be_replaced(
    moving: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", "span route begin")
        mover.at()
        with immutable(pooler.databases_file):
            mover.go()
            assert mover.end() == 3, mover.said
            clients.wait_served()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S)
        finish(moving, "resume")
    assert clients.errors() == [], "of the other pooler"
    prove(moving, clients)
