"""Machines that are cut off, hang, end or are far away while shards move between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients, last
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.on_machines import SpreadFleet

pytestmark = pytest.mark.fault

ALL, STAYS = (0, 2, 3), (0,)
"""Shards whose clients are served meanwhile."""
LOST = ""
"""The SQLSTATE of an error of libpq's own."""
ONE_WAY_MS = 50


@pytest.fixture
def fleet_proved(fleet_machines: SpreadFleet) -> Iterator[tuple[SpreadFleet, Clients]]:
    """Give a fleet on machines beside clients, whose move the test has brought to its end."""
    with Clients(fleet_machines) as clients:
        yield fleet_machines, clients
        clients.wait_served()
    assert fleet_machines.owner == "c"
    prove(fleet_machines, clients)


@pytest.mark.parametrize(
    ("point", "name", "how", "served", "codes"),
    [
        ("span fence begin", "desk", "cut", ALL, set()),
        ("span promote begin", "desk", "cut", STAYS, FENCE),
        ("span claim begin", "c", "cut", STAYS, FENCE | {LOST}),
        ("span route begin", "v", "cut", ALL, set()),
        ("span route begin", "w", "hangs", STAYS, FENCE),
        ("span open begin", "c", "hangs", STAYS, FENCE),
    ],
)
def test_a_machine_that_is_cut_off_or_whose_ssh_server_hangs(
    fleet_proved: tuple[SpreadFleet, Clients],
    *, point: str, name: str, how: str, served: tuple[int, ...], codes: set[str],
) -> None:  # fmt: skip
    fleet, clients = fleet_proved
    machine = fleet.machine if name == "desk" else fleet.network[name]
    mover = fleet.mover("start", point)
    mover.at(point)
    with machine.unplugged() if how == "cut" else machine.ssh_hangs():
        mover.go()
        last()
        # Of a pooler that is cut off, its own machine knows.
        wait_for(
            lambda: (fleet.paused_on(name) if name == "v" else fleet.paused()) == [],
            seconds=SERVED_S,
        )
        clients.wait_served(served)
    if mover.end() != 0:
        finish(fleet, "resume")
    assert clients.codes() <= codes, clients.errors()


@pytest.mark.parametrize(
    ("point", "served", "codes"),
    [("step clone run", ALL, set()), ("span claim begin", STAYS, FENCE)],
)
def test_an_operators_machine_that_is_gone_for_good(
    fleet_proved: tuple[SpreadFleet, Clients],
    point: str, served: tuple[int, ...], codes: set[str],
) -> None:  # fmt: skip
    fleet, clients = fleet_proved
    fleet.mover("start", point).at(point)
    fleet.machine.power_off()
    clients.wait_served(served)
    fleet.go_to("phone")
    # What ends sessions whose other end is gone; the servers would, too, in a minute.
    fleet.unlock()
    finish(fleet, "resume")
    assert clients.codes() <= codes, clients.errors()


def test_a_targets_machine_that_goes_down_and_comes_up_again(
    fleet_proved: tuple[SpreadFleet, Clients],
) -> None:
    fleet, clients = fleet_proved
    mover = fleet.mover("start", "span claim begin")
    mover.at("span claim begin")
    fleet.network["c"].power_off()
    mover.go()
    fleet.network.boot("c")
    mover.end()
    clients.wait_served(STAYS)
    finish(fleet, "resume")


@pytest.mark.parametrize("name", ["v", "c"])
def test_a_machine_that_is_far_away(fleet_proved: tuple[SpreadFleet, Clients], name: str) -> None:
    fleet, clients = fleet_proved
    with fleet.network[name].delayed(ONE_WAY_MS):
        mover = fleet.mover("start")
        # Its pause may be too short for the distance; then nothing has happened.
        if mover.end() != 0:
            finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
