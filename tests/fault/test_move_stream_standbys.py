"""Streamed moves from a source with a standby, which is promoted in the middle of a cutover."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts.local import Local
from shardctl.moves import plan, service
from shardctl.moves.plan import Options
from shardctl.moves.standbys import StandbysBehind
from shardctl.moves.stopped import MoveStopped
from shardctl.topology.model import NodeName
from tests.fixtures.moves import streamed
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.control import Server
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

SLOT = "of_standby"


@pytest.fixture
def standby(fleet_own: Lab) -> Iterator[Server]:
    """Make a standby of node a, with a slot there."""
    source = fleet_own.server("a")
    data = fleet_own.directory / "nodes" / "a2"
    data.mkdir(mode=0o700)
    if source.account is not None:
        shutil.chown(data, source.account)
    argv = ["-h", source.host, "-p", str(source.port), "-U", "postgres", "-D", str(data)]
    argv += ["-R", "-C", "-S", SLOT, "--checkpoint=fast", "--no-sync"]
    Local().run([source.binaries.program("pg_basebackup"), *argv], user=source.account)
    # In the place of node d, which no test here starts.
    port = fleet_own.topology.nodes[NodeName("d")].port
    made = dataclasses.replace(source, name="a2", port=port, data_directory=data)
    made.start()
    streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
    wait_for(lambda: fleet_own.ask("a", streams))
    yield made
    made.stop(mode="immediate")


def planned(fleet: Lab, **options: bool) -> MovePlan:
    given = Options(5.0, 0.0, **options)  # type: ignore[arg-type]
    return service.plan(fleet.topology, [2, 3], "b", given, method=plan.STREAM)


def mover(fleet: Lab, *stops: str) -> Mover:
    options = json.dumps(asdict(Options(5.0, 0.0)))
    return Mover([str(fleet.file), "start", options, *stops], program=streamed.__name__)


def fail_over(fleet: Lab, standby: Server) -> None:
    """Let the standby be node a: the old server never comes back."""
    fleet.server("a").stop(mode="immediate")
    standby.stop(mode="fast")
    promoted = dataclasses.replace(standby, port=fleet.server("a").port)
    promoted.start()
    with fleet.connect("a") as session:
        session.execute("SELECT pg_promote(true, 30)")


def kill_at(fleet: Lab, point: str) -> None:
    one = mover(fleet, point)
    try:
        one.at(point)
    finally:
        one.kill()


def rows(fleet: Lab, node: str) -> set[int]:
    return {one for (one,) in fleet.ask(node, "SELECT id FROM shard2.photos")}


def test_a_source_that_fails_over_behind_the_fence_gets_its_shards_back(
    fleet_own: Lab, standby: Server
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span decide begin")
    fail_over(fleet_own, standby)
    fleet_own.abort()
    assert fleet_own.copy("a").state.value == fleet_own.copy("b").state.value == "aborted"
    assert written <= rows(fleet_own, "a")
    assert "shard2" not in fleet_own.schemas("b")
    assert fleet_own.put(2)


def test_a_source_that_fails_over_behind_the_fence_is_copied_again(
    fleet_own: Lab, standby: Server
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span decide begin")
    fail_over(fleet_own, standby)
    fleet_own.resume()
    assert fleet_own.copy("b").proof == "compared"
    assert written <= rows(fleet_own, "b")
    assert fleet_own.leads("shard2") == "b"


def test_a_source_that_fails_over_behind_the_decision_stays_without_its_shards(
    fleet_own: Lab, standby: Server
) -> None:
    written = {fleet_own.put(2) for _ in range(5)}
    kill_at(fleet_own, "span claim begin")
    fail_over(fleet_own, standby)
    fleet_own.resume()
    assert fleet_own.copy("b").state.claimed_by_target
    assert written <= rows(fleet_own, "b")
    assert "shard2" not in fleet_own.schemas("a")
    assert fleet_own.leads("shard2") == "b"


def test_a_standby_that_lost_the_decision_does_not_undo_it(fleet_own: Lab, standby: Server) -> None:
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
    wait_for(lambda: fleet_own.ask("b", "SELECT 1 FROM shardctl.stream WHERE what = 'decision'"))
    one.kill()
    fail_over(fleet_own, standby)
    assert fleet_own.copy("a").state.undoable
    fleet_own.resume()
    assert fleet_own.copy("a").state.claimed_by_target
    assert fleet_own.leads("shard2") == "b"
    assert "shard2" not in fleet_own.schemas("a")


def test_a_standby_that_is_away_keeps_the_cutover_from_its_decision(
    fleet_own: Lab, standby: Server
) -> None:
    standby.stop(mode="fast")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own))
    assert isinstance(caught.value.error, StandbysBehind)
    assert caught.value.error.names == (SLOT,)
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.abort()


def test_a_standby_that_nothing_promotes_is_left_out(fleet_own: Lab, standby: Server) -> None:
    standby.stop(mode="fast")
    fleet_own.start(planned(fleet_own, ignore_standby=True))
    assert fleet_own.leads("shard2") == "b"
