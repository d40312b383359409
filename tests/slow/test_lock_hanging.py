"""The lock of a node whose server hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.state import lock
from tests.fixtures.moves.harm import frozen, processes

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_server_that_hangs_does_not_hold_up_who_lets_go(fleet_own: Lab) -> None:
    topology = fleet_own.topology
    node = topology.nodes["a"]  # type: ignore[index]  # a NodeName is a str
    session = lock.hold(topology, node, command="test")
    with frozen(lambda: processes(fleet_own.server("a").data_directory)):
        lock.release(session)
    assert session.closed
