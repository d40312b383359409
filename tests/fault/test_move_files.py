"""Disks of a clone's target that are full, and files of a pooler that cannot be written or read."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.harm import immutable, small_disk
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import add_pooler, finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_target_whose_disk_is_full_during_the_copy(fleet_points: MovingFleet, verb: str) -> None:
    folder = fleet_points.place.parent / "disk"
    folder.mkdir()
    fleet_points.places["c"] = folder / "c"
    fleet_points.file.unlink()
    with small_disk(folder, "24m") as make_large, Clients(fleet_points) as clients:
        mover = fleet_points.mover("start")
        assert mover.end() == 3, mover.said
        assert any("CopyFailed" in line for line in mover.said), mover.said
        make_large()
        finish(fleet_points, verb)
        clients.wait_served()
        assert clients.errors() == []
        prove(fleet_points, clients)
        if verb == "resume":
            dataclasses.replace(
                fleet_points.servers["a"].server, data_directory=fleet_points.place
            ).stop()


def test_a_staged_file_that_cannot_be_written(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "step follow ran")
        mover.at()
        move = fleet_points.journal()
        assert move is not None
        name = f"{pooler.databases_file.name}.{move.id}.staged"
        staged = pooler.databases_file.with_name(name)
        staged.mkdir()
        mover.go()
        assert mover.end() == 3, mover.said
        assert any(str(staged) in line for line in mover.said), mover.said
        assert fleet_points.state() == "undone"
        staged.rmdir()
        finish(fleet_points, "abort")
    assert clients.errors() == []
    prove(fleet_points, clients)


def test_a_file_of_aliases_that_cannot_be_replaced(
    fleet_points: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(fleet_points, pooler_for, "p2")
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span route begin")
        mover.at()
        with immutable(pooler.databases_file):
            mover.go()
            assert mover.end() == 3, mover.said
            clients.wait_served()
            wait_for(lambda: fleet_points.paused() == [], seconds=SERVED_S)
        finish(fleet_points, "resume")
    assert clients.errors() == [], "of the other pooler"
    prove(fleet_points, clients)


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
    assert any(line.startswith("reload_rejected: ") for line in mover.said), mover.said
    assert "PAUSE" not in fleet_points.pg_bouncer.log()
    assert (fleet_points.guards(), fleet_points.owner) == ([], "a")
    config.write_text(text)
    fleet_points.pg_bouncer.signal(signal.SIGHUP)
    finish(fleet_points, "resume")
    assert fleet_points.owner == "c"
