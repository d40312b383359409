"""Streamed moves from a source with a standby, which is promoted in the middle of a cutover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.moves.standbys import StandbysBehind
from shardctl.moves.stopped import MoveStopped
from shardctl.topology.model import NodeName
from tests.fixtures.moves.failover import SLOT, fail_over, make_standby
from tests.fixtures.moves.stream_moves import planned
from tests.fixtures.moves.streamed import TARGET
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.sandbox.local import LocalServer
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault


@pytest.fixture
def standby(fleet_own: Lab) -> Iterator[LocalServer]:
    """Make a standby of node a, with a slot there."""
    # In the place of node d, which no test here starts.
    port = fleet_own.topology.nodes[NodeName("d")].port
    data = fleet_own.directory / "nodes" / "a2"
    made = make_standby(fleet_own.server("a"), data, port)
    yield made
    made.stop(mode="immediate")


def kill_at(fleet: Lab, point: str) -> None:
    one = fleet.mover("start", point)
    one.at(point)
    one.kill()


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span decide begin", "abort"),
        ("span decide begin", "resume"),
        ("span claim begin", "resume"),
    ],
)
def test_a_source_that_fails_over_behind_the_fence_or_the_decision_loses_nothing(
    fleet_own: Lab, standby: LocalServer, point: str, verb: str
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, point)
    fail_over(fleet_own.server("a"), standby)
    owner, other = ("a", TARGET) if verb == "abort" else (TARGET, "a")
    if verb == "abort":
        fleet_own.abort()
        assert fleet_own.copy("a").state.value == fleet_own.copy(TARGET).state.value == "aborted"
    else:
        fleet_own.resume()
        assert fleet_own.copy(TARGET).state.claimed_by_target
    assert written <= {one for (one,) in fleet_own.ask(owner, "SELECT id FROM shard2.photos")}
    assert "shard2" not in fleet_own.schemas(other)
    assert fleet_own.leads("shard2") == owner
    assert fleet_own.put(2)


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
    wait_for(lambda: fleet_own.ask(TARGET, "SELECT 1 FROM shardctl.stream WHERE what = 'decision'"))
    one.kill()
    fail_over(fleet_own.server("a"), standby)
    assert fleet_own.copy("a").state.undoable
    fleet_own.resume()
    assert fleet_own.copy("a").state.claimed_by_target
    assert fleet_own.leads("shard2") == TARGET
    assert "shard2" not in fleet_own.schemas("a")


def test_a_standby_that_is_away_keeps_the_cutover_from_its_decision(
    fleet_own: Lab, standby: LocalServer
) -> None:
    standby.stop()
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], TARGET))
    assert isinstance(caught.value.error, StandbysBehind)
    assert caught.value.error.names == (SLOT,)
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.abort()
    # One that nothing promotes is left out.
    fleet_own.start(planned(fleet_own, [2, 3], TARGET, ignore_standby=True))
    assert fleet_own.leads("shard2") == TARGET


def test_a_standby_that_comes_while_clients_wait_keeps_the_cutover_from_its_decision(
    fleet_own: Lab,
) -> None:
    one = fleet_own.mover("start", "span fence begin")
    one.at("span fence begin")
    fleet_own.ask("a", f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")
    one.go()
    assert one.end() == 3, one.said
    assert any("StandbysBehind" in line and SLOT in line for line in one.said), one.said
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.ask("a", f"SELECT pg_drop_replication_slot('{SLOT}')")
    fleet_own.resume()
    assert fleet_own.leads("shard2") == TARGET
