"""Machines cease to answer, to obey or to be there while shards move between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.outages import last
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import in_the_window, wait_served
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("name", "point"),
    [("w", "span route begin"), ("c", "span open begin")],
)
def test_an_ssh_server_that_hangs(fleet_machines: SpreadFleet, name: str, point: str) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        with fleet_machines.network[name].ssh_hangs():
            mover.go()
            last()
            wait_for(lambda: fleet_machines.paused() == [], seconds=SERVED_S)
            clients.wait_served({0})
        if mover.end() != 0:
            finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE, clients.errors()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)


@pytest.mark.parametrize("point", ["step clone run", "span claim begin"])
def test_an_operators_machine_that_is_gone_for_good(
    fleet_machines: SpreadFleet, point: str
) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        window = in_the_window(fleet_machines, point)
        fleet_machines.machine.power_off()
        wait_served(fleet_machines, clients, window=window)
        fleet_machines.go_to("phone")
        # What ends sessions whose other end is gone; the servers would, too, in a minute.
        fleet_machines.unlock()
        finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.codes() <= (FENCE if window else set()), clients.errors()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)


@pytest.mark.parametrize("point", ["span claim begin"])
def test_a_targets_machine_that_goes_down_and_comes_up_again(
    fleet_machines: SpreadFleet, point: str
) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        fleet_machines.network["c"].power_off()
        mover.go()
        fleet_machines.network.boot("c")
        mover.end()
        clients.wait_served({0})
        finish(fleet_machines, "resume")
        clients.wait_served()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)
