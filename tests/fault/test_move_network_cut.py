"""Cables are pulled while shards move between machines, and plugged in again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures import points
from tests.fixtures.moving import finish
from tests.fixtures.outages import first_of_all, last
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.windows import BEGINS, in_the_window, wait_served
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.spread import SpreadFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}
STEPS = [point for point in points.of_steps() if not point.startswith("step clear ")]
"""The begin of every step and the end of the last; nothing has to be cleared from the target."""
COPIED = ["step clone run", "step follow run", *BEGINS]
"""From where on others have their part in it."""
LOST = ""
"""The SQLSTATE of an error of libpq's own."""


@pytest.mark.parametrize("point", first_of_all("span promote begin", [*STEPS, *BEGINS]))
def test_the_cable_of_the_operators_machine(spread: SpreadFleet, point: str) -> None:
    with Clients(spread) as clients:
        mover = spread.mover("start", point)
        mover.at(point)
        window = in_the_window(spread, point)
        with spread.machine.unplugged():
            mover.go()
            last()
            wait_for(lambda: spread.paused() == [], seconds=SERVED_S)
            wait_served(spread, clients, window=window)
        if mover.end() != 0 and spread.state() != "none":
            finish(spread, "abort" if spread.state() in UNDOABLE and len(point) % 2 else "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    assert window or clients.gap() < SERVED_S
    if spread.state() != "none":
        prove(spread, clients)


@pytest.mark.parametrize("point", first_of_all("span replay begin", COPIED))
def test_the_cable_of_the_source(spread: SpreadFleet, point: str) -> None:
    with Clients(spread) as clients:
        mover = spread.mover("start", point)
        mover.at(point)
        with spread.network["a"].unplugged():
            mover.go()
            last()
            wait_for(lambda: spread.paused() == [], seconds=SERVED_S)
        if mover.end() != 0:
            finish(spread, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | {LOST}, clients.errors()
    prove(spread, clients)


@pytest.mark.parametrize("point", first_of_all("span claim begin", COPIED))
def test_the_cable_of_the_target(spread: SpreadFleet, point: str) -> None:
    with Clients(spread) as clients:
        mover = spread.mover("start", point)
        mover.at(point)
        with spread.network["c"].unplugged():
            mover.go()
            last()
            wait_for(lambda: spread.paused() == [], seconds=SERVED_S)
            clients.wait_served({0} if spread.state() not in UNDOABLE else {0, 2, 3})
        if mover.end() != 0:
            finish(spread, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | {LOST}, clients.errors()
    prove(spread, clients)


@pytest.mark.parametrize("point", first_of_all("span route begin", COPIED))
def test_the_cable_of_one_pooler_of_three(spread: SpreadFleet, point: str) -> None:
    with Clients(spread) as clients:
        mover = spread.mover("start", point)
        mover.at(point)
        with spread.network["v"].unplugged():
            mover.go()
            last()
            wait_for(lambda: spread.paused_on("v") == [], seconds=SERVED_S)
            clients.wait_served()
        if mover.end() != 0:
            finish(spread, "resume")
        clients.wait_served()
    assert clients.errors() == [], "of another pooler"
    prove(spread, clients)
