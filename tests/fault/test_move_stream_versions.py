"""Streamed moves on and between the major versions that differ in what a stream meets."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


def test_a_move_between_versions_loses_nothing(fleet_versions: MovingFleet) -> None:
    with Clients(fleet_versions, target="b") as clients:
        mover = fleet_versions.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients)


def test_a_round_trip_between_versions_loses_nothing(fleet_versions: MovingFleet) -> None:
    """A reverse may go to an older version."""
    choice = dataclasses.replace(fleet_versions.choice, keep_reverse_s=3600.0)
    fleet_versions.choice = choice
    with Clients(fleet_versions, target="b") as clients:
        for verb in ("start", "reverse"):
            mover = fleet_versions.mover(verb)
            assert mover.end(seconds=120) == 0, mover.said
            clients.wait_served()
    assert clients.errors() == []
    assert fleet_versions.owner == "a"
    assert fleet_versions.state() == fleet_versions.state("b") == "done"
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients, version=3)


def test_a_table_made_over_the_fence_ends_the_cutover(fleet_versions: MovingFleet) -> None:
    """On 16 and newer the rename does not wait for it, and locks on tables catch no one."""
    patient(fleet_versions)
    with Clients(fleet_versions, target="b") as clients:
        with fleet_versions.log_in("a", user="postgres", autocommit=False) as session:
            mover = fleet_versions.mover("start", "span fence begin", "span drain begin")
            mover.at("span fence begin")
            session.execute("CREATE TABLE shard2.made AS SELECT 7 AS kept")
            mover.go()
            with contextlib.suppress(AssertionError):  # on 15, the fence waits
                if mover.next(seconds=1) is not None:
                    mover.go()
            session.commit()
        if mover.next() is not None:
            mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith(("StructureChanged", "FenceRefused")) for line in mover.said)
        clients.wait_served()
        assert fleet_versions.ask("a", "SELECT kept FROM shard2.made") == [(7,)]
        fleet_versions.ask("a", "DROP TABLE shard2.made")
        finish(fleet_versions, "abort")
    assert clients.errors() == []
    assert streamed.left(fleet_versions) == []
    prove(fleet_versions, clients)
