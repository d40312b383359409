"""Clients that log in anew for each request, at a fixed rate, while shards move."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.moves.stopping import END_LOCKING, add_pooler, finish, patient
from tests.fixtures.moves.writers import SERVED_S
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.traffic.report import Report
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.moves.stopping import MovingFleet
    from tests.fixtures.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.fault

PER_S = 60
RETRY_MS = 15_000
"""What PgBouncer's own `server_login_retry` would hold clients up for, if it came to that."""
MOST_MS = 5_000
"""Far more than anything takes on a machine that is busy with other tests, and less than that."""
MOVED = [ShardId(2), ShardId(3)]
OWN = 3_000
"""Databases of the operator's own: reading them takes PgBouncer some time at each RELOAD."""


def crowded(pooler: PgBouncer, port: int) -> None:
    """Give a pooler databases of its operator's own, and let it take them."""
    text = pooler.config.read_text()
    own = "".join(f"own{n} = host=127.0.0.1 port={port} dbname=postgres\n" for n in range(OWN))
    pooler.config.write_text(text.replace("[pgbouncer]\n", f"[databases]\n{own}[pgbouncer]\n"))
    pooler.admin("RELOAD")
    with pooler.console() as console:
        assert len(console.databases()) > OWN


def longest_ms(report: Report) -> float:
    """Give the longest wait, without what the load has begun late for want of a processor."""
    assert report.logins is not None
    return (report.longest_ms or 0.0) - report.logins.late_ms


@pytest.mark.parametrize("more", [(), ("p2", "p3")], ids=["one pooler", "three poolers"])
def test_no_login_is_held_up_by_more_than_the_move(
    fleet_points: MovingFleet, pooler_for: AddPooler, more: tuple[str, ...]
) -> None:
    for pooler in (
        fleet_points.pg_bouncer,
        *(add_pooler(fleet_points, pooler_for, n) for n in more),
    ):
        crowded(pooler, fleet_points.servers["a"].port)
    patient(fleet_points)
    with Load.start(fleet_points.topology(), clients=0, logins=PER_S, shards=MOVED) as load:
        wait_for_writes(load, PER_S)
        mover = fleet_points.mover("start")
        assert mover.end() == 0, mover.said
        wait_for_writes(load, PER_S)
        report = load.check()
    assert (report.errors, report.lost, report.duplicates) == (0, 0, 0), report.failures
    assert longest_ms(report) < MOST_MS


@pytest.mark.parametrize(
    ("point", "owner"), [("span decide begin", "a"), ("span route begin", "c")]
)
def test_no_login_is_held_up_by_more_than_the_guards(
    fleet_points: MovingFleet, point: str, owner: str
) -> None:
    fleet_points.options = f"connect_timeout: {RETRY_MS // 500}"
    fleet_points.file.unlink()
    crowded(fleet_points.pg_bouncer, fleet_points.servers["a"].port)
    with Load.start(fleet_points.topology(), clients=0, logins=PER_S, shards=MOVED) as load:
        wait_for_writes(load, PER_S)
        mover = fleet_points.mover("start", point)
        mover.at(point)
        mover.kill()
        wait_for(
            lambda: not fleet_points.paused() and not fleet_points.guards_to_fire(), seconds=30
        )
        with fleet_points.pg_bouncer.console() as console:
            assert console.config()["server_login_retry"] == str(RETRY_MS // 1000)
        wait_for_writes(load, PER_S)
        report = load.check()
    finish(fleet_points, "resume" if owner == "c" else "abort")
    assert fleet_points.owner == owner
    assert (report.errors, report.lost, report.duplicates) == (0, 0, 0), report.failures
    assert longest_ms(report) < MOST_MS + 1000 * SERVED_S


def test_no_login_is_held_up_by_more_than_a_cutover_that_is_undone(
    fleet_points: MovingFleet,
) -> None:
    patient(fleet_points)
    with Load.start(fleet_points.topology(), clients=0, logins=PER_S, shards=MOVED) as load:
        wait_for_writes(load, PER_S)
        mover = fleet_points.mover("start", "span snapshot end")
        mover.at("span snapshot end")
        fleet_points.ask("a", END_LOCKING)
        mover.go()
        assert mover.end() != 0
        assert fleet_points.paused() == []
        with fleet_points.pg_bouncer.console() as console:
            assert console.config()["server_login_retry"] == str(RETRY_MS // 1000)
        wait_for_writes(load, PER_S)
        report = load.check()
    assert (report.errors, report.lost, report.duplicates) == (0, 0, 0), report.failures
    assert longest_ms(report) < MOST_MS
    finish(fleet_points, "abort")


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
