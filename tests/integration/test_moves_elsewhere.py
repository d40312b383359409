"""Nodes of a move that listen elsewhere when it is resumed: who a node is, its identity says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.fanout import Silent
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from shardctl.provision import poolers as pooling
from shardctl.state.journal import MoveState
from shardctl.topology.model import NodeName
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.stream_moves import left, planned, replace_step
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


@pytest.fixture
def stopped(fleet_own: Lab) -> Lab:
    """Give a fleet with a streamed move that stopped when its rows were copied."""
    with pytest.MonkeyPatch.context() as patch:
        replace_step(patch, follow.STREAM_STEP, lose)
        with pytest.raises(MoveStopped):
            fleet_own.start(planned(fleet_own, [2, 3], "b"))
    return fleet_own


def put_elsewhere(fleet: Lab, before: str, now: str) -> None:
    """Change the topology, once."""
    text = fleet.file.read_text()
    assert text.count(before) == 1
    fleet.file.write_text(text.replace(before, now))


def fleet_port(fleet: Lab, node: str) -> int:
    return fleet.topology.nodes[NodeName(node)].port


def apply_poolers(fleet: Lab) -> None:
    """Do what `pgbouncer apply` does, when nodes listen elsewhere."""
    topology = fleet.topology
    poolers = list(topology.poolers.values())
    pooling.apply(pooling.plan(topology, poolers, 1, force=False, purpose="test"), Silent())


def test_nodes_at_other_ports_keep_their_move_and_other_servers_do_not(stopped: Lab) -> None:
    ports = {node: fleet_port(stopped, node) for node in "ab"}
    whole = stopped.file.read_text()
    put_elsewhere(stopped, f"port: {ports['b']}", "port: 1")
    put_elsewhere(stopped, f"port: {ports['a']}", f"port: {ports['b']}")
    with raises_code("node_unfit"):
        stopped.resume()
    stopped.file.write_text(whole)
    for node, port in zip("ab", free_ports(2), strict=True):
        stopped.server(node).stop()
        put_elsewhere(stopped, f"port: {ports[node]}", f"port: {port}")
        stopped.server(node).start()
    apply_poolers(stopped)
    stopped.resume()
    assert stopped.copy("a").state is stopped.copy("b").state is MoveState.done
    assert stopped.ask("b", "SELECT count(*) FROM shard2.photos") == [(1,)]
    assert left(stopped) == []
