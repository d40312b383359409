"""Streamed moves from a source with a standby, which is promoted in the middle of a cutover."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.moves import plan, service
from shardctl.moves.plan import Options
from shardctl.moves.standbys import StandbysBehind
from shardctl.moves.stopped import MoveStopped
from shardctl.topology.model import NodeName
from tests.fixtures.moves import streamed
from tests.fixtures.moves.failover import SLOT, fail_over, make_standby
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.plan import MovePlan
    from shardctl.sandbox.local import LocalServer
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

TARGET = streamed.TARGET


@pytest.fixture
def standby(fleet_own: Lab) -> Iterator[LocalServer]:
    """Make a standby of node a, with a slot there."""
    # In the place of node d, which no test here starts.
    port = fleet_own.topology.nodes[NodeName("d")].port
    data = fleet_own.directory / "nodes" / "a2"
    made = make_standby(fleet_own.server("a"), data, port)
    yield made
    made.stop(mode="immediate")


def planned(fleet: Lab, **options: bool) -> MovePlan:
    given = Options(5.0, 0.0, **options)  # type: ignore[arg-type]
    return service.plan(fleet.topology, [2, 3], TARGET, given, method=plan.STREAM)


def mover(fleet: Lab, *stops: str) -> Mover:
    options = json.dumps(asdict(Options(5.0, 0.0)))
    return Mover([str(fleet.file), "start", options, *stops], program=streamed.__name__)


def kill_at(fleet: Lab, point: str) -> None:
    one = mover(fleet, point)
    try:
        one.at(point)
    finally:
        one.kill()


def rows(fleet: Lab, node: str) -> set[int]:
    return {one for (one,) in fleet.ask(node, "SELECT id FROM shard2.photos")}


def test_a_source_that_fails_over_behind_the_fence_gets_its_shards_back(
    fleet_own: Lab, standby: LocalServer
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span decide begin")
    fail_over(fleet_own.server("a"), standby)
    fleet_own.abort()
    assert fleet_own.copy("a").state.value == fleet_own.copy(TARGET).state.value == "aborted"
    assert written <= rows(fleet_own, "a")
    assert "shard2" not in fleet_own.schemas(TARGET)
    assert fleet_own.put(2)


def test_a_source_that_fails_over_behind_the_fence_is_copied_again(
    fleet_own: Lab, standby: LocalServer
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span decide begin")
    fail_over(fleet_own.server("a"), standby)
    fleet_own.resume()
    assert fleet_own.copy(TARGET).proof == "compared"
    assert written <= rows(fleet_own, TARGET)
    assert fleet_own.leads("shard2") == TARGET


def test_a_source_that_fails_over_behind_the_decision_stays_without_its_shards(
    fleet_own: Lab, standby: LocalServer
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span claim begin")
    fail_over(fleet_own.server("a"), standby)
    fleet_own.resume()
    assert fleet_own.copy(TARGET).state.claimed_by_target
    assert written <= rows(fleet_own, TARGET)
    assert "shard2" not in fleet_own.schemas("a")
    assert fleet_own.leads("shard2") == TARGET


def test_a_standby_that_lost_the_decision_does_not_undo_it(
    fleet_own: Lab, standby: LocalServer
) -> None:
    """It has the fence; the target has the decision, which came through the stream."""
    one = mover(fleet_own, "span decide begin")
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
    standby.stop(mode="fast")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own))
    assert isinstance(caught.value.error, StandbysBehind)
    assert caught.value.error.names == (SLOT,)
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.abort()


def test_a_standby_that_nothing_promotes_is_left_out(fleet_own: Lab, standby: LocalServer) -> None:
    standby.stop(mode="fast")
    fleet_own.start(planned(fleet_own, ignore_standby=True))
    assert fleet_own.leads("shard2") == TARGET


def test_a_standby_that_comes_while_clients_wait_keeps_the_cutover_from_its_decision(
    fleet_own: Lab,
) -> None:
    one = mover(fleet_own, "span fence begin")
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
