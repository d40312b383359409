"""One pooler of two ends, or hangs, in a streamed move: the other one's clients see no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import stop_pooler
from tests.fixtures.moves.stopping import add_pooler, kill_pooler

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span fence begin", "resume"),
        ("span arrive begin", "abort"),
        ("span decide begin", "resume"),
        ("span claim begin", "resume"),
        ("span route begin +2", "resume"),
    ],
)
def test_a_pooler_that_is_killed_beside_one_that_lives(
    fleet_stream: MovingFleet, pooler_for: AddPooler, point: str, verb: str
) -> None:
    dying = add_pooler(fleet_stream, pooler_for, "p2")
    with Busy(fleet_stream) as clients:
        kill_pooler(fleet_stream, clients, dying, point, verb)
    assert not {f.code for one in clients.pooled for f in one.failures}, "of the other pooler"
    assert fleet_stream.owner == ("a" if verb == "abort" else "b")
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize(
    "point",
    ["span pause begin", "span fence begin", "span decide begin", "span claim begin",
     "span route begin"],
)  # fmt: skip
def test_a_pooler_that_hangs_beside_one_that_does_not(
    fleet_stream: MovingFleet, pooler_for: AddPooler, point: str
) -> None:
    hanging = add_pooler(fleet_stream, pooler_for, "p2")
    with Busy(fleet_stream) as clients:
        stop_pooler(fleet_stream, clients, hanging, point)
    assert not {f.code for one in clients.pooled for f in one.failures}, "of the other pooler"
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)
