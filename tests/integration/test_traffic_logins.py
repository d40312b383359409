"""The open loop of `sandbox traffic`: a new login for each operation, at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures.moves.loads import mini_move, wait_for_writes

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

PER_S = 100


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
