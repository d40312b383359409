"""Clients that log in for each request, and a large commit, while shards are streamed elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures.moves import points, streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

PER_S = 60
MOST_MS = 5_000
"""Less than PgBouncer's `server_login_retry`, and more than a busy machine takes."""
BULK = 200_000


@pytest.mark.parametrize("point", ["span claim begin", ""])
def test_no_login_is_held_up_by_more_than_the_move_or_its_guards(
    fleet_stream: MovingFleet, point: str
) -> None:
    """Every request logs in anew, at its time and not when the one before has ended."""
    moved = [ShardId(shard) for shard in points.MOVED]
    with Load.start(fleet_stream.topology(), clients=0, logins=PER_S, shards=moved) as load:
        wait_for_writes(load, PER_S)
        mover = fleet_stream.mover("start", *([point] if point else []))
        if point:
            mover.at(point)
            mover.kill()
            wait_for(
                lambda: not fleet_stream.paused() and not fleet_stream.guards_to_fire(),
                seconds=3 * SERVED_S,
            )
            wait_for_writes(load, PER_S)
            finish(fleet_stream, "resume")
        else:
            assert mover.end() == 0, mover.said
        wait_for_writes(load, PER_S)
        report = load.check()
    assert fleet_stream.owner == "b"
    assert streamed.left(fleet_stream) == []
    assert report.ok, report.as_json()
    assert report.logins is not None
    waited = (report.longest_ms or 0.0) - report.logins.late_ms
    assert waited < MOST_MS + (1000 * SERVED_S if point else 0)


def test_a_bulk_commit_before_the_fence_does_not_hold_clients_up(
    fleet_stream: MovingFleet,
) -> None:
    """Its table is not published; its rows are decoded all the same."""
    fleet, target = fleet_stream, streamed.TARGET
    fleet.ask("a", "CREATE TABLE public.bulk (id bigint, note text)")
    rows = f"SELECT n, md5(n::text) FROM generate_series(1, {BULK}) AS n"
    with (
        Clients(fleet, target=target) as clients,
        fleet.log_in("a", user="postgres", autocommit=False) as bulk,
    ):
        mover = fleet.mover("start", "step cutover run", "span fence begin")
        mover.at("step cutover run")
        bulk.execute(f"INSERT INTO public.bulk {rows}".encode())
        mover.go()
        mover.at("span fence begin")
        bulk.commit()
        mover.go()
        if mover.end() != 0:
            finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5  # the pause of 5 s, and what a busy machine adds
    prove_streamed(fleet, clients)
