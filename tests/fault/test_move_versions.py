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
from tests.fixtures.moves.stopping import NEWER, OLDEST, finish, patient
from tests.fixtures.moves.writers import ByCursor, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

TRIPS = [
    pytest.param(*one.values, keyless, marks=one.marks, id=f"{one.id}{'-keyless' * keyless}")
    for keyless, those in ((False, [OLDEST, *NEWER]), (True, NEWER[:2]))
    for one in those
]
KEYLESS = """
ALTER TABLE shard{0}.writes DROP CONSTRAINT writes_pkey;
CREATE INDEX ON shard{0}.writes (token); -- 16 and newer look for whole rows by it
"""


def lent(fleet: MovingFleet) -> list[str]:
    """Name the node of each live table of the moved shards that has a replica identity lent."""
    query = (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relreplident <> 'd'"
        " AND relnamespace::regnamespace::text IN ('shard2', 'shard3')"
    )
    return [node for node in fleet.servers for _ in fleet.ask(node, query)]


@pytest.mark.parametrize(("fleet_versions", "keyless"), TRIPS, indirect=["fleet_versions"])
def test_a_round_trip_between_versions_loses_nothing(
    fleet_versions: MovingFleet, *, keyless: bool
) -> None:
    """A reverse may go to an older version."""
    fleet = fleet_versions
    fleet.choice = dataclasses.replace(fleet.choice, keep_reverse_s=3600.0, identity_full=keyless)
    for shard in range(fleet.count if keyless else 0):
        fleet.execute("a" if shard < 4 else "b", KEYLESS.format(shard))
    with Clients(fleet, target="b") as clients:
        (cursor,) = (one for one in clients.direct if isinstance(one, ByCursor))
        mover = fleet.mover("start")
        assert mover.end(seconds=120) == 0, mover.said
        clients.wait_served()
        arrived = dict(fleet.ask("b", "SELECT token, version FROM shard3.writes"))
        assert cursor.missing(arrived) == set()
        assert lent(fleet) == ["b", "b"] * keyless
        change = "UPDATE shard3.writes SET version = version + 1 RETURNING token"
        changed = fleet.ask("b", change)
        mover = fleet.mover("reverse")
        assert mover.end(seconds=120) == 0, mover.said
        clients.wait_served()
        found = fleet.ask("a", "SELECT token FROM shard3.writes WHERE version > 0")
        assert set(changed) <= set(found)
    assert clients.errors() == []
    assert "55000" not in {one.code for one in cursor.failures}  # what a lack of identity gives
    assert fleet.owner == "a"
    assert fleet.state() == fleet.state("b") == "done"
    assert lent(fleet) == []
    assert streamed.left(fleet) == []
    prove(fleet, clients, version=3)


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
