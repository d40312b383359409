"""A streamed move whose target's disk is full, for its tables or its WAL, and is made larger."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fault.conftest import EVERY_POINT
from tests.fixtures.moves.clone_streamed import BRANCHED, TARGET
from tests.fixtures.moves.disks import (
    Writer,
    assert_moved,
    cloned_on_a_disk,
    on_a_disk,
    write_large,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.disks import Disk
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

SLOW = pytest.mark.skipif(
    not os.environ.get(EVERY_POINT), reason="takes long: `make fault` runs it"
)


@pytest.fixture
def tables_disk(fleet_own_bare: Lab, fleet_own_made: Path) -> Iterator[Disk]:
    with on_a_disk(fleet_own_bare, fleet_own_made, "base", "96m") as made:
        yield made


@pytest.fixture
def wal_disk(fleet_own_bare: Lab, fleet_own_made: Path) -> Iterator[Disk]:
    with on_a_disk(fleet_own_bare, fleet_own_made, "pg_wal", "48m") as made:
        yield made


def test_a_target_whose_tables_have_no_room_says_so_and_gets_them_later(tables_disk: Disk) -> None:
    fleet = tables_disk.fleet
    with Writer(fleet) as writer:
        mover = tables_disk.mover("start", "step copy run")
        mover.at("step copy run")
        tables_disk.fill()
        mover.go()
        assert mover.end() == 3, mover.said
        assert any("No space left on device" in line for line in mover.said), mover.said
        tables_disk.free()

        mover = tables_disk.mover("resume", "span ping begin")
        mover.at("span ping begin")
        tables_disk.fill()
        write_large(fleet)
        mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith("MarkNotSeen: ") for line in mover.said), mover.said
        writer.wait_served()
        tables_disk.free()

        # The claim may need a page; without room the target claims when there is some.
        mover = tables_disk.mover("resume", "span claim begin")
        mover.at("span claim begin")
        tables_disk.fill()
        mover.go()
        code = mover.end()
        tables_disk.free()
        if code != 0:
            assert any("No space left on device" in line for line in mover.said), mover.said
            fleet.resume()
        writer.wait_served()
    assert fleet.copy("a").state.closed
    assert_moved(fleet, writer)


@SLOW
def test_a_target_that_its_wal_has_ended_claims_when_it_is_back(wal_disk: Disk) -> None:
    fleet, disk = wal_disk.fleet, wal_disk
    with Writer(fleet) as writer:
        mover = disk.mover("start", "step follow run")
        mover.at("step follow run")
        disk.fill()
        mover.go()
        while disk.runs():
            write_large(fleet)
        assert mover.end() == 3, mover.said
        writer.wait_served()
        disk.free()
        fleet.server("b").start()

        mover = disk.mover("resume", "span claim begin")
        mover.at("span claim begin")
        disk.fill()
        with suppress(psycopg.OperationalError), fleet.connect("b") as session:
            while True:
                session.execute("SELECT pg_switch_wal(), pg_logical_emit_message(true, '', '')")
        assert not disk.runs()
        mover.go()
        assert mover.end() == 3, mover.said
        disk.free()
        fleet.server("b").start()
        fleet.resume()
        writer.wait_served()
    # What was to be compared has gone with the server's sessions.
    assert fleet.copy("a").state.value == fleet.copy("b").state.value == "unconfirmed"
    assert_moved(fleet, writer)


@pytest.fixture
def clones_disk(fleet_own_bare: Lab, fleet_own_made: Path) -> Iterator[Disk]:
    with cloned_on_a_disk(fleet_own_bare, fleet_own_made, "192m") as made:
        yield made


def full_at(disk: Disk, verb: str, point: str, *, leave: int = 0, writes: int = 0) -> list[str]:
    """Let the disk be full from a point of a move on until that has stopped; give what it said."""
    mover = disk.mover(verb, point)
    mover.at(point)
    disk.fill(leave=leave)
    for _ in range(writes):
        write_large(disk.fleet)
    mover.go()
    assert mover.end(seconds=120) == 3, mover.said
    disk.free()
    return mover.said


@SLOW
def test_a_clone_without_room_goes_on_when_there_is_some_in_every_phase(clones_disk: Disk) -> None:
    disk, fleet = clones_disk, clones_disk.fleet
    with Writer(fleet) as writer:
        said = full_at(disk, "start", "step clone run", leave=8 << 20)
        assert any("No space left on device" in line for line in said), said
        writer.wait_served()

        # What the clone has to receive before it can be promoted has no room.
        mover = disk.mover("resume", "step promote run")
        mover.at("step promote run")
        for _ in range(8):
            write_large(fleet)
        mover.kill()
        full_at(disk, "resume", BRANCHED, leave=1 << 20)
        writer.wait_served()

        full_at(disk, "resume", "step follow run", writes=8)
        writer.wait_served()

        full_at(disk, "resume", "span ping begin", writes=8)
        writer.wait_served()

        mover = disk.mover("resume", "span claim begin")
        mover.at("span claim begin")
        disk.fill()
        mover.go()
        code = mover.end(seconds=120)
        disk.free()
        if code != 0:
            fleet.resume()
        writer.wait_served()
    assert fleet.copy("a").state.closed
    assert_moved(fleet, writer, TARGET)


@SLOW
@pytest.mark.parametrize(
    "point", ["step clone run", BRANCHED, "step follow run", "span ping begin"]
)
def test_a_clone_without_room_is_deleted_by_an_abort(clones_disk: Disk, point: str) -> None:
    disk, fleet = clones_disk, clones_disk.fleet
    with Writer(fleet) as writer:
        mover = disk.mover("start", point)
        mover.at(point)
        disk.fill()
        for _ in range(8):
            write_large(fleet)
        mover.go()
        assert mover.end(seconds=120) == 3, mover.said
        writer.wait_served()
        aborted = disk.mover("abort")
        assert aborted.end(seconds=120) == 0, aborted.said
        disk.free()
        writer.wait_served()
    assert fleet.copy("a").state.value == "aborted"
    assert [one.name for one in disk.place.iterdir()] == []
    assert fleet.leads("shard2") == "a"
    assert fleet.problems() == []
