"""A pooler ends, hangs, or has files that cannot be written, while shards move."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.harm import immutable, stop_pooler
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import add_pooler, finish, kill_pooler
from tests.fixtures.moves.writers import FENCE, MAX_PAUSE_S, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.moves.stopping import MovingFleet

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
    fleet_points: MovingFleet, pooler_for: AddPooler, point: str, verb: str
) -> None:
    dying = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        kill_pooler(fleet_points, clients, dying, point, verb)
    assert clients.errors() == [], "of the other pooler"
    assert fleet_points.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points, clients)


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
    fleet_points: MovingFleet, point: str
) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at(point)
        fleet_points.pg_bouncer.signal(signal.SIGKILL)
        wait_for(lambda: fleet_points.pg_bouncer.server.running() is None)
        fleet_points.pg_bouncer.start()
        mover.go()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        finish(fleet_points, "resume")
        clients.wait_served()
    # What it had paused goes on, and finds the fence until that is lifted or the guard routes.
    assert clients.codes() <= FENCE | {CONNECTION_LOST}, clients.errors()
    assert fleet_points.owner == "c"
    prove(fleet_points, clients)


@pytest.mark.parametrize(
    "point", ["span pause begin", "span fence begin", "span decide begin", "span route begin"]
)
def test_a_pooler_that_hangs_beside_one_that_does_not(
    fleet_points: MovingFleet, pooler_for: AddPooler, point: str
) -> None:
    hanging = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        stop_pooler(fleet_points, clients, hanging, point)
    assert clients.errors() == [], "of the other pooler"
    assert clients.gap() < SERVED_S
    prove(fleet_points, clients)


def test_a_staged_file_that_cannot_be_written(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    staged = pooler.databases_file.with_name(f"{pooler.databases_file.name}.staged")
    with Clients(fleet_points) as clients:
        staged.mkdir()
        mover = fleet_points.mover("start")
        assert mover.end() == 3, mover.said
        assert any(str(staged) in line for line in mover.said), mover.said
        assert fleet_points.state() == "undone"
        staged.rmdir()
        finish(fleet_points, "abort")
    assert clients.errors() == []
    assert clients.gap() < MAX_PAUSE_S
    prove(fleet_points, clients)


def test_a_file_of_aliases_that_cannot_be_replaced(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span route begin")
        mover.at()
        with immutable(pooler.databases_file):
            mover.go()
            assert mover.end() == 3, mover.said
            clients.wait_served()
            wait_for(lambda: fleet_points.paused() == [], seconds=SERVED_S)
        finish(fleet_points, "resume")
    assert clients.errors() == [], "of the other pooler"
    prove(fleet_points, clients)
