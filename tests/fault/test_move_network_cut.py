"""Cables are pulled while shards move between machines, and plugged in again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.state.journal import MoveState
from tests.fixtures.moves.outages import last
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import in_the_window, wait_served
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}
LOST = ""
"""The SQLSTATE of an error of libpq's own."""


@pytest.mark.parametrize("point", ["span fence begin", "span promote begin"])
def test_the_cable_of_the_operators_machine(fleet_machines: SpreadFleet, point: str) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        window = in_the_window(fleet_machines, point)
        with fleet_machines.machine.unplugged():
            mover.go()
            last()
            wait_for(lambda: fleet_machines.paused() == [], seconds=SERVED_S)
            wait_served(fleet_machines, clients, window=window)
        if mover.end() != 0 and fleet_machines.state() != "none":
            finish(
                fleet_machines,
                "abort" if fleet_machines.state() in UNDOABLE and len(point) % 2 else "resume",
            )
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    assert window or clients.gap() < SERVED_S
    if fleet_machines.state() != "none":
        prove(fleet_machines, clients)


@pytest.mark.parametrize("point", ["span claim begin"])
def test_the_cable_of_the_target(fleet_machines: SpreadFleet, point: str) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        with fleet_machines.network["c"].unplugged():
            mover.go()
            last()
            wait_for(lambda: fleet_machines.paused() == [], seconds=SERVED_S)
            clients.wait_served({0} if fleet_machines.state() not in UNDOABLE else {0, 2, 3})
        if mover.end() != 0:
            finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | {LOST}, clients.errors()
    prove(fleet_machines, clients)


@pytest.mark.parametrize("point", ["span route begin"])
def test_the_cable_of_one_pooler_of_three(fleet_machines: SpreadFleet, point: str) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        with fleet_machines.network["v"].unplugged():
            mover.go()
            last()
            wait_for(lambda: fleet_machines.paused_on("v") == [], seconds=SERVED_S)
            clients.wait_served()
        if mover.end() != 0:
            finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.errors() == [], "of another pooler"
    prove(fleet_machines, clients)
