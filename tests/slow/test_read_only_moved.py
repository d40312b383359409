"""Read-only shards that move stay so, on their new node alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.access import read_only_fleet
from shardctl.access.read_only import Wanted
from shardctl.checks.status import observe
from shardctl.fanout import Silent
from shardctl.state.journal import MoveState
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.read_only import refused, switch_off, switch_on, triggers
from tests.fixtures.moves.stream_moves import planned

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab
    from tests.fixtures.moves.spares import MovedFleet

INSERT = "INSERT INTO photos (user_id) VALUES (1)"


def read_only(fleet: MovedFleet) -> dict[str, list[int]]:
    """Tell which shards of which node `status` calls read-only."""
    seen = observe(fleet.topology(), sample_s=0, progress=Silent())
    return {node.name: sorted(node.read_only) for node in seen.nodes if node.read_only}


def test_a_read_only_shard_moves_and_stays_so_until_it_is_off(fleet_spares: MovedFleet) -> None:
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    switch_on(fleet_spares, 1, 2)
    fleet_spares.move([2, 3], "c")
    assert read_only(fleet_spares) == {"a": [1], "c": [2]}
    assert fleet_spares.listed()[0]["state"] == "done"
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        with refused(2):
            session.execute(INSERT)
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (1,)
    with fleet_spares.pg_bouncer.connect("shard3") as session:
        session.execute(INSERT)
    done = fleet_spares.here("prune", "--yes")
    assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
    assert triggers(fleet_spares, "a") == {"shard1": 1}
    assert triggers(fleet_spares, "c") == {"shard2": 1}
    assert fleet_spares.problems() == []
    switch_off(fleet_spares, 2)
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    assert read_only(fleet_spares) == {"a": [1]}
    assert fleet_spares.problems() == []


def test_a_retired_copy_is_no_shard_that_could_be_read_only(fleet_spares: MovedFleet) -> None:
    fleet_spares.move([2, 3], "c")
    switch_on(fleet_spares, 0, 2)
    assert read_only(fleet_spares) == {"a": [0], "c": [2]}
    assert triggers(fleet_spares, "a") == {"shard0": 1}
    done = fleet_spares.here("moves", "list", "-o", "json")
    assert done.returncode == 0
    assert fleet_spares.problems() == []


def test_a_read_only_shard_is_streamed_and_stays_so_until_it_is_off(fleet_own: Lab) -> None:
    def switch(wanted: Wanted) -> None:
        found = read_only_fleet.plan(fleet_own.topology, [ShardId(2)], wanted, purpose="test")
        read_only_fleet.carry_out(fleet_own.topology, found, wanted, wait_s=0, progress=Silent())

    fleet_own.put(2)
    switch(Wanted.on)
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert fleet_own.copy("b").state is MoveState.done
    assert fleet_own.copy("b").proof == "compared"
    with refused(2):
        fleet_own.put(2)
    fleet_own.put(3)
    assert fleet_own.problems() == []
    switch(Wanted.off)
    fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT count(*) FROM shard2.photos") == [(3,)]
