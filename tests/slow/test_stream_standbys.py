"""Streamed moves from a source whose standby is away, or is promoted without the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.moves.marks import StandbysBehind
from shardctl.moves.stopped import MoveStopped
from shardctl.topology.model import NodeName
from tests.fixtures.moves.failover import SLOT, fail_over, make_standby
from tests.fixtures.moves.stream_moves import planned
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.sandbox.local import LocalServer
    from tests.fixtures.moves.own import Lab


@pytest.fixture
def standby(fleet_own: Lab) -> Iterator[LocalServer]:
    """Make a standby of node a, with a slot there, in the place of node d."""
    port = fleet_own.topology.nodes[NodeName("d")].port
    data = fleet_own.directory / "nodes" / "a2"
    made = make_standby(fleet_own.server("a"), data, port)
    yield made
    made.stop(mode="immediate")


def test_a_standby_that_lost_the_decision_does_not_undo_it(
    fleet_own: Lab, standby: LocalServer
) -> None:
    """It has the fence; the target has the decision, which came through the stream."""
    one = fleet_own.mover("start", "span decide begin")
    one.at("span decide begin")
    with psycopg.connect(
        host=standby.host, port=standby.port, user="postgres", dbname="postgres", autocommit=True
    ) as session:
        session.execute("SELECT pg_wal_replay_pause()")
    # What it receives from now on is lost with its files.
    standby.stop(mode="immediate")
    one.go()
    wait_for(lambda: fleet_own.ask("b", "SELECT 1 FROM shardctl.stream WHERE what = 'decision'"))
    one.kill()
    fail_over(fleet_own.server("a"), standby)
    assert fleet_own.copy("a").state.undoable
    fleet_own.resume()
    assert fleet_own.copy("a").state.claimed_by_target
    assert fleet_own.leads("shard2") == "b"
    assert "shard2" not in fleet_own.schemas("a")


def test_a_standby_that_is_away_keeps_the_cutover_from_its_decision(
    fleet_own: Lab, standby: LocalServer
) -> None:
    standby.stop()
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert isinstance(caught.value.error, StandbysBehind)
    assert caught.value.error.names == (SLOT,)
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.abort()
    # One that nothing promotes is left out.
    fleet_own.start(planned(fleet_own, [2, 3], "b", ignore_standby=True))
    assert fleet_own.leads("shard2") == "b"
