"""Clients that are hard to serve, while shards are streamed to another node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures.moves import points, streamed
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    import psycopg

    from tests.fixtures.moves.stopping import MovingFleet

    Session = psycopg.Connection[Any]

pytestmark = pytest.mark.fault

PER_S = 60
MOST_MS = 5_000
"""Less than PgBouncer's `server_login_retry`, and more than a busy machine takes."""
SECONDS = 15.0
INSERT = "INSERT INTO {}writes (token) VALUES (-1)"
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


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


def opened(fleet: MovingFleet, kind: str) -> Session:
    """Open a transaction that holds a moved table."""
    match kind:
        case "through the pooler":
            session = fleet.pg_bouncer.connect("shard2", fleet.role)
        case "of a reader" | "direct" | "prepared":
            session = fleet.log_in("a")
        case _:
            session = fleet.log_in("a", user="postgres")
    statement = {
        "of a reader": "SELECT count(*) FROM shard2.writes",
        "through the pooler": INSERT.format(""),
        "of a vacuum": "LOCK TABLE shard2.writes IN SHARE UPDATE EXCLUSIVE MODE",
    }.get(kind, INSERT.format("shard2."))
    session.execute("BEGIN")
    session.execute(statement.encode())
    if kind == "prepared":
        session.execute("PREPARE TRANSACTION 'held'")
    return session
