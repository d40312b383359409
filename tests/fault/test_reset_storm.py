"""Clients that reset their sessions beside others, for half a minute, and while shards move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.router import ShardedDatabase
from tests.fixtures import resets, storms
from tests.fixtures.fleets.verify import verify
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

SECONDS = 30.0


def test_no_client_fails_beside_clients_that_reset(fleet_pooled: PooledFleet) -> None:
    resets.survive(fleet_pooled)
    with resets.Neighbours(fleet_pooled, (1, 5), "photos") as clients:
        clients.blow(SECONDS)
    assert clients.failed == {}, clients.done
    assert set(clients.done) > set(resets.RESETS), clients.done
    assert [f for f in verify(fleet_pooled) if f.code == "search_path"] == []


def test_no_call_of_the_router_fails_beside_clients_that_reset(fleet_pooled: PooledFleet) -> None:
    resets.survive(fleet_pooled)
    storm = storms.Storm(SECONDS)
    storms.seed(lambda shard, text: fleet_pooled.execute("a" if shard < 4 else "b", text), storm)
    with (
        resets.Neighbours(fleet_pooled, (1, 5), "photos") as clients,
        ShardedDatabase(fleet_pooled.topology(), pool=storms.POOL) as db,
    ):
        storms.Threads(db, storm.begin()).run()
        assert storms.missing_after(db) == {}
    assert storm.met() == ([], [], True), (storm.ended, storm.given_up)
    assert set(storm.ended) >= {"_run", "_keys", "_load"}
    assert clients.failed == {}, clients.done


def test_no_client_fails_beside_clients_that_reset_while_shards_move(
    fleet_points: MovingFleet,
) -> None:
    resets.survive(fleet_points)
    with (
        Clients(fleet_points) as writers,
        resets.Neighbours(fleet_points, (0, 2, 3), "writes") as clients,
    ):
        mover = fleet_points.mover("start")
        if mover.end() != 0:
            finish(fleet_points, "resume")
        writers.wait_served()
    assert fleet_points.state() == "done", mover.said
    assert clients.failed == {}, clients.done
    assert sum(clients.done[by] for by in resets.RESETS) > 0
    assert writers.errors() == []
    prove(fleet_points, writers)


def test_what_a_guard_brings_into_force_survives_resets_too(fleet_points: MovingFleet) -> None:
    resets.survive(fleet_points)
    with Clients(fleet_points) as writers:
        mover = fleet_points.mover("start", "span route begin")
        mover.at()
        mover.kill()
        writers.wait_served()
        with resets.Neighbours(fleet_points, (0, 2, 3), "writes") as clients:
            clients.blow(3.0)
        finish(fleet_points, "resume")
        writers.wait_served()
    assert clients.failed == {}, clients.done
    assert sum(clients.done[by] for by in resets.RESETS) > 0
    assert fleet_points.owner == "c"
    prove(fleet_points, writers)
