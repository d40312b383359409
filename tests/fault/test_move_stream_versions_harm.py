"""What is killed, lost or altered while shards are streamed between newer versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.again import killed_again_and_again, restarted_at_points
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import keep_for_slots, lose_slot
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.stream_versions import NEWER

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = [
    pytest.mark.fault,
    pytest.mark.parametrize("fleet_versions", NEWER, indirect=True),
]

DAYS = "CREATE TABLE shard2.days (day integer PRIMARY KEY) PARTITION BY RANGE (day)"
DAY = "CREATE TABLE shard2.days_1 PARTITION OF shard2.days FOR VALUES FROM (1) TO (9)"


@pytest.mark.parametrize("first", [1, 19])
def test_a_process_killed_before_many_effects(fleet_versions: MovingFleet, first: int) -> None:
    with Busy(fleet_versions) as clients:
        assert killed_again_and_again(fleet_versions, clients, "resume", first, 36) > 3
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_versions.owner == streamed.TARGET
    prove_streamed(fleet_versions, clients)


@pytest.mark.parametrize(("node", "first"), [("a", 0), ("b", 2)])
def test_a_server_that_is_killed_at_many_points_and_soon_back(
    fleet_versions: MovingFleet, node: str, first: int
) -> None:
    restarted_at_points(fleet_versions, node, streamed.POINTS[first :: streamed.ROUNDS])


@pytest.mark.parametrize("point", ["step follow run", "span ping begin"])
def test_a_slot_that_is_lost_is_named_and_the_copy_made_again(
    fleet_versions: MovingFleet, point: str
) -> None:
    """Also one whose stream is at work, and waits for a lock on the target."""
    with Busy(fleet_versions) as clients, fleet_versions.log_in("a", user="postgres") as source:
        mover = fleet_versions.mover("start", point)
        mover.at(point)
        with fleet_versions.log_in("b", user="postgres", autocommit=False) as holder:
            holder.execute("LOCK TABLE shard2.writes IN ACCESS EXCLUSIVE MODE")
            clients.wait_served()  # what they write from now on is not applied
            lose_slot(source)
            holder.rollback()
        mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith("slot_gone") for line in mover.said), mover.said
        clients.wait_served()
        keep_for_slots(source, "-1")
        finish(fleet_versions, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_versions.owner == streamed.TARGET
    prove_streamed(fleet_versions, clients)


@pytest.mark.parametrize("point", [streamed.COPYING, "step follow ran", "span fence begin"])
def test_a_partition_that_is_made_during_the_move_is_named(
    fleet_versions: MovingFleet, point: str
) -> None:
    patient(fleet_versions)
    fleet_versions.ask("a", DAYS)
    with Busy(fleet_versions) as clients:
        mover = fleet_versions.mover("start", point)
        mover.at(point)
        fleet_versions.ask("a", DAY)
        fleet_versions.ask("a", "INSERT INTO shard2.days VALUES (1)")
        mover.go()
        assert mover.end() == 3, mover.said
        told = [line for line in mover.said if line.startswith("StructureChanged")]
        assert "shard2.days_1 was made" in "".join(told), mover.said
        clients.wait_served()
        finish(fleet_versions, "abort")
    assert clients.errors() == []
    assert fleet_versions.ask("a", "SELECT day FROM shard2.days") == [(1,)]
    fleet_versions.ask("a", "DROP TABLE shard2.days")
    prove_streamed(fleet_versions, clients)
