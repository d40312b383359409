"""The open loop of `sandbox traffic`: a new login for each operation, at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from shardctl.traffic.logins import MOST_DIRECT
from tests.fixtures.moves.loads import mini_move, wait_for_writes
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

PER_S = 100


def test_without_a_pooler_logins_that_wait_leave_room_on_the_node(
    fleet_pooled: PooledFleet,
) -> None:
    """All of PostgreSQL's connections would be taken after a second or two of waiting."""
    here = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shardctl sandbox traffic'"
    )

    def connected() -> int:
        return int(fleet_pooled.query("a", here)[0][0])

    with Load.start(
        fleet_pooled.topology(), clients=0, logins=PER_S, aliases="direct", shards=[ShardId(1)]
    ) as load:
        wait_for_writes(load, 20)
        with fleet_pooled.connect("a") as session, session.transaction():
            session.execute(b"LOCK TABLE shard1.shardctl_traffic")
            logins = load._logins
            assert logins is not None
            wait_for(lambda: len(logins._tasks) > 2 * MOST_DIRECT)
            wait_for(lambda: connected() > MOST_DIRECT / 2)
            most = connected()
        wait_for_writes(load, 200)
        report = load.check()
    assert most <= MOST_DIRECT + 1  # the load's own session looks at the map
    assert (report.errors, report.ok) == (0, True), report.failures


@pytest.mark.proof
def test_where_logins_know_the_map_they_follow_a_shard_that_moves(
    fleet_pooled: PooledFleet,
) -> None:
    shards = [ShardId(1), ShardId(5)]
    with Load.start(
        fleet_pooled.topology(), clients=2, rate=40, logins=PER_S, aliases="node", shards=shards
    ) as load:
        wait_for_writes(load)
        mini_move(fleet_pooled, 1, outage_s=0.2)
        wait_for_writes(load, 200)
        report = load.check()
    assert (report.errors, report.lost, report.duplicates, report.moved) == (0, 0, 0, (1,))
    assert report.fenced
    assert (report.clients, report.ok) == (2, True)
    assert report.logins is not None
    assert (report.logins.latencies.longest_ms(moved=True) or 0) > 100
