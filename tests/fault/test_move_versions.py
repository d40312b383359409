"""Moves on and between the major versions, which differ in what a stream and a fence meet."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.plan import CLONE
from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


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
    prove_streamed(fleet_versions, clients)


@pytest.mark.embedded
@pytest.mark.parametrize("fleet_versions", [(18, 18, CLONE)], indirect=True)
def test_a_table_that_is_committed_behind_the_fence_arrives_with_its_rows(
    fleet_versions: MovingFleet,
) -> None:
    patient(fleet_versions)
    with Clients(fleet_versions) as clients:
        with fleet_versions.log_in("a", user="postgres", autocommit=False) as session:
            session.execute("CREATE TABLE shard2.made AS SELECT 7 AS kept")
            mover = fleet_versions.mover("start", "span drain begin", "span mark begin")
            mover.at("span drain begin")
            mover.go()
            with pytest.raises(AssertionError, match="no point was reached"):
                mover.next(seconds=0.3)
            session.commit()
        mover.at("span mark begin")
        mover.go()
        assert mover.end() == 0, mover.said
        assert fleet_versions.ask("c", "SELECT kept FROM shard2.made") == [(7,)]
        fleet_versions.ask("c", "DROP TABLE shard2.made")
    assert clients.errors() == []
    prove(fleet_versions, clients)
