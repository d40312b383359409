"""Clients that log in anew for each request, at a fixed rate, while shards move."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from tests.fixtures.moves.stopping import finish

if TYPE_CHECKING:
    from shardctl.traffic.report import Report
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

PER_S = 60
MOST_MS = 5_000
"""Far more than anything takes on a machine that is busy with other tests, and less than that."""
MOVED = [ShardId(2), ShardId(3)]
OWN = 3_000
"""Databases of the operator's own: reading them takes PgBouncer some time at each RELOAD."""


def longest_ms(report: Report) -> float:
    """Give the longest wait, without what the load has begun late for want of a processor."""
    assert report.logins is not None
    return (report.longest_ms or 0.0) - report.logins.late_ms


def test_a_pooler_that_cannot_read_its_configuration_is_found_before_the_pause(
    fleet_points: MovingFleet,
) -> None:
    config = fleet_points.pg_bouncer.config
    text = config.read_text()
    mover = fleet_points.mover("start", "span stage files begin")
    mover.at("span stage files begin")
    config.write_text(text.replace("pool_mode = transaction", "pool_mode = transactoin"))
    mover.go()
    assert mover.end() != 0
    assert any(line.startswith("reload_rejected: pooler p1") for line in mover.said), mover.said
    assert "PAUSE" not in fleet_points.pg_bouncer.log()
    assert (fleet_points.guards(), fleet_points.owner) == ([], "a")
    config.write_text(text)
    fleet_points.pg_bouncer.signal(signal.SIGHUP)
    finish(fleet_points, "resume")
    assert fleet_points.owner == "c"
