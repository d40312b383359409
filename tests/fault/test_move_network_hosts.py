"""Machines cease to answer, to obey or to be there while shards move between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.fault.conftest import EVERY_POINT
from tests.fixtures.moves.on_machines import DATA
from tests.fixtures.moves.outages import last
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.windows import in_the_window, wait_served
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

NOTICED_S = 90.0
"""In which time a server notices that a machine is gone which had sessions with it."""


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("w", "span route begin"),
        ("v", "span stage files begin"),
        ("c", "span open begin"),
        ("w", "span arm guards begin"),
        ("c", "step clone run"),
        ("v", "span disarm begin"),
    ],
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


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("v", "span route begin"),
        ("c", "step clone run"),
        ("w", "span stage files begin"),
        ("c", "span open begin"),
    ],
)
def test_a_login_that_may_become_nobody_else_any_more(
    fleet_machines: SpreadFleet, name: str, point: str
) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        with fleet_machines.network[name].sudo_refused():
            mover.go()
            assert mover.end() == 3, mover.said
            assert any("deploy may not run commands as postgres" in line for line in mover.said)
            wait_for(lambda: fleet_machines.paused() == [], seconds=SERVED_S)
            clients.wait_served({0})
        finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE, clients.errors()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)


@pytest.mark.parametrize(
    ("name", "point"),
    [("c", "step follow run"), ("w", "span route begin"), ("c", "step clone run")],
)
def test_a_host_key_that_changes(fleet_machines: SpreadFleet, name: str, point: str) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", point)
        mover.at(point)
        fleet_machines.network[name].new_host_key()
        mover.go()
        code = mover.end()
        assert code == 3, mover.said
        assert any("it presents the host key" in line for line in mover.said), mover.said
        clients.wait_served()
        fleet_machines.network.know()
        finish(fleet_machines, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE, clients.errors()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_disk_that_is_full_during_the_copy(fleet_machines: SpreadFleet, verb: str) -> None:
    c = fleet_machines.network["c"]
    with c.small_disk(DATA.parent, "24m") as make_large, Clients(fleet_machines) as clients:
        fleet_machines.place = c.view(DATA)
        mover = fleet_machines.mover("start")
        assert mover.end() == 3, mover.said
        assert any("CopyFailed" in line for line in mover.said), mover.said
        make_large()
        finish(fleet_machines, verb)
        clients.wait_served()
        assert clients.errors() == []
        prove(fleet_machines, clients)


@pytest.mark.parametrize(
    "point", ["span fence begin", "step clone run", "span claim begin", "span route begin"]
)
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


@pytest.mark.skipif(not os.environ.get(EVERY_POINT), reason="takes a minute: `make fault` runs it")
def test_servers_notice_that_the_operators_machine_is_gone(fleet_machines: SpreadFleet) -> None:
    with Clients(fleet_machines) as clients:
        mover = fleet_machines.mover("start", "span mark begin")
        mover.at()
        fleet_machines.machine.power_off()
        clients.wait_served()
        fleet_machines.go_to("phone")
        wait_for(lambda: not fleet_machines.is_locked(), seconds=NOTICED_S)
        finish(fleet_machines, "abort")
    assert clients.errors() == []
    prove(fleet_machines, clients)


@pytest.mark.parametrize("point", ["span pause begin", "step follow run", "span claim begin"])
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
