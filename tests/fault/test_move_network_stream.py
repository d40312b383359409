"""The network between two machines is cut in a move whose target follows by a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import retry_soon
from tests.fixtures.moves.on_machines import POOLERS
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE
from tests.fixtures.network.cuts import HOW, cut
from tests.fixtures.network.network import DESKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

DESK, POOLER = DESKS[0], POOLERS[0]
CUTOVER = [
    "span fence begin",
    "span arrive begin",  # between fence and decision: the stream has all by then
    "span claim begin",  # between decision and claim
    "span ping begin",  # before the pause
    "step follow run",
]
POINTS = {
    "b": [*CUTOVER, "step copy run"],
    "c": [*CUTOVER, "span route begin", "step clone run", "step promote run", "step open run"],
}
"""By the target: shards are streamed to node b, and by a clone to node c."""


def pairs(target: str) -> list[tuple[str, str]]:
    return [
        ("a", target),
        *((DESK, name) for name in ("a", target, POOLER)),
        *((POOLER, name) for name in ("a", target)),
    ]


LOST = {"", "08001", "08006", "08P01", "57P01"}
"""The SQLSTATEs of connections that break off, and of logins that find nobody."""


@pytest.fixture
def fleet_apart(
    request: pytest.FixtureRequest, fleet_machines: SpreadFleet
) -> Iterator[SpreadFleet]:
    """Give a fleet on machines whose moves are streamed to node b, or clone node a onto c."""
    streamed.use(fleet_machines)
    if request.param == clone_streamed.TARGET:
        fleet_machines.program = clone_streamed.__name__
    streamed.shorten_pause(fleet_machines)
    yield fleet_machines
    streamed.end(fleet_machines)


@pytest.mark.parametrize(
    ("fleet_apart", "pair", "point", "how"),
    [
        pytest.param(target, pair, point, how, id="-".join((*pair, point, how)))
        for how in HOW
        for target, points in POINTS.items()
        for point in points
        for pair in pairs(target)
    ],
    indirect=["fleet_apart"],
)
def test_two_machines_that_cannot_reach_each_other(
    fleet_apart: SpreadFleet, pair: tuple[str, str], point: str, how: str
) -> None:
    target = "c" if fleet_apart.program == clone_streamed.__name__ else "b"
    one, other = (fleet_apart.network[name] for name in pair)
    serves = POOLER not in pair or DESK in pair  # all its clients, without the machine that is cut
    if not serves:  # PgBouncer waits that long for a node that stays, when it is back
        retry_soon(fleet_apart)
    with Busy(fleet_apart, target=target) as clients:
        mover = fleet_apart.mover("start", point)
        mover.at(point)
        with cut(one, other, how):
            mover.go()
            streamed.outlast(fleet_apart)
            if serves:
                clients.wait_served(seconds=streamed.SERVED_S)
        if mover.end() != 0:
            finish(fleet_apart, "resume")
        clients.wait_served()
    assert clients.codes() <= (set() if serves else FENCE | LOST), clients.errors()
    assert fleet_apart.owner == target
    prove_streamed(fleet_apart, clients)
