"""The network between two machines of a streamed move is cut; both reach all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.on_machines import POOLERS
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE
from tests.fixtures.network.cuts import HOW, cut
from tests.fixtures.network.network import DESKS
from tests.fixtures.servers.postgres import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

DESK, POOLER = DESKS[0], POOLERS[0]
CUTS = [
    (("a", "b"), "span arrive begin"),  # between fence and decision: the stream has all by then
    (("a", "b"), "step follow run"),
    ((DESK, "a"), "span fence begin"),
    ((DESK, "b"), "span claim begin"),  # between decision and claim
    ((POOLER, "b"), "span claim begin"),
]
LOST = {"", "08001", "08006", "08P01", "57P01"}
"""The SQLSTATEs of connections that break off, and of logins that find nobody."""


@pytest.fixture
def fleet_apart(fleet_machines: SpreadFleet) -> Iterator[SpreadFleet]:
    """Give a fleet on machines whose moves are streamed to node b."""
    streamed.use(fleet_machines)
    streamed.shorten_pause(fleet_machines)
    yield fleet_machines
    streamed.end(fleet_machines)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("pair", "point"), CUTS)
def test_two_machines_that_cannot_reach_each_other(
    fleet_apart: SpreadFleet, pair: tuple[str, str], point: str, how: str
) -> None:
    one, other = (fleet_apart.network[name] for name in pair)
    serves = POOLER not in pair or DESK in pair  # all its clients, without the machine that is cut
    with Busy(fleet_apart) as clients:
        mover = fleet_apart.mover("start", point)
        mover.at(point)
        with cut(one, other, how):
            mover.go()
            streamed.outlast(fleet_apart)
            if serves:
                clients.wait_served(seconds=streamed.SERVED_S)
        if mover.end() != 0:
            finish(fleet_apart, "resume")
        # PgBouncer tries a node again 15 s after it could not reach it (server_login_retry).
        clients.wait_served(seconds=streamed.SERVED_S if serves else PATIENCE_S)
    assert clients.codes() <= (set() if serves else FENCE | LOST), clients.errors()
    prove_streamed(fleet_apart, clients)
