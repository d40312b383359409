"""Shards move between machines that are far from one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moving import finish
from tests.fixtures.proving import prove
from tests.fixtures.writing import Clients

if TYPE_CHECKING:
    from tests.fixtures.spread import SpreadFleet

pytestmark = pytest.mark.fault

ONE_WAY_MS = 50


@pytest.mark.parametrize("name", ["v", "c", "a"])
def test_a_machine_that_is_far_away(spread: SpreadFleet, name: str) -> None:
    with Clients(spread) as clients, spread.network[name].delayed(ONE_WAY_MS):
        mover = spread.mover("start")
        # Its pause may be too short for the distance; then nothing has happened.
        if mover.end() != 0:
            finish(spread, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert spread.owner == "c"
    prove(spread, clients)
