"""Read-only shards that move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.access import read_only_fleet
from shardctl.access.read_only import Wanted
from shardctl.fanout import Silent
from shardctl.state.journal import MoveState
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_read_only_shard_is_streamed_and_stays_so_until_it_is_off(fleet_own: Lab) -> None:
    def switch(wanted: Wanted) -> None:
        found = read_only_fleet.plan(fleet_own.topology, [ShardId(2)], wanted, purpose="test")
        read_only_fleet.carry_out(fleet_own.topology, found, wanted, wait_s=0, progress=Silent())

    fleet_own.put(2)
    switch(Wanted.on)
    fleet_own.move([2, 3], "b")
    assert fleet_own.copy("b").state is MoveState.done
    assert fleet_own.copy("b").proof == "compared"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match=r"^shard 2 is read-only: "):
        fleet_own.put(2)
    fleet_own.put(3)
    assert fleet_own.problems() == []
    switch(Wanted.off)
    fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT count(*) FROM shard2.photos") == [(3,)]
