"""`read-only` beside writers and readers, and read-only shards that move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg

from shardctl.access import read_only_fleet
from shardctl.access.read_only import Wanted
from shardctl.fanout import Silent
from shardctl.state.journal import MoveState
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.read_only import (
    OF_A_SHARD,
    refused,
    switch_on,
    triggers,
    writing,
)
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.moves.own import Lab


INSERT = b"INSERT INTO shard2.photos (user_id) VALUES (1)"


def test_no_write_is_uncommitted_when_it_has_ended(fleet_tables: Fleet) -> None:
    """Whatever rows there are at the end stay: nobody is left who could add one."""
    committed: list[int] = []

    def write() -> None:
        with fleet_tables.connect("a") as session:
            try:
                while True:
                    with session.transaction():
                        session.execute(INSERT)
                        session.execute("SELECT pg_sleep(0.01)")
                    committed.append(1)
            except psycopg.errors.ReadOnlySqlTransaction:
                return

    with ThreadPoolExecutor(6) as beside:
        writers = [beside.submit(write) for _ in range(6)]
        wait_for(lambda: len(committed) > 20 or any(one.done() for one in writers))
        switch_on(fleet_tables, 2, wait_s=60.0)
        [(rows,)] = fleet_tables.query("a", "SELECT count(*) FROM shard2.photos")
        assert [one.result() for one in writers] == [None] * 6
    assert fleet_tables.query("a", "SELECT count(*) FROM shard2.photos") == [(rows,)]
    assert len(committed) == rows


def test_a_writer_that_does_not_end_is_named_and_the_others_are_done(fleet_tables: Fleet) -> None:
    with writing(fleet_tables, "a", "shard2", application_name="import") as session:
        with raises_code("shards_left") as left:
            switch_on(fleet_tables, 1, 2, 3, wait_s=0.3)
        assert left.value.exit_code == 3
        assert f"session {session.info.backend_pid} (" in left.value.message
        session.execute(INSERT)
    assert triggers(fleet_tables, "a") == {"shard1": OF_A_SHARD, "shard3": OF_A_SHARD}
    switch_on(fleet_tables, 1, 2, 3)
    assert triggers(fleet_tables, "a")["shard2"] == OF_A_SHARD


def test_a_read_only_shard_is_streamed_and_stays_so_until_it_is_off(fleet_own: Lab) -> None:
    def switch(wanted: Wanted) -> None:
        found = read_only_fleet.plan(fleet_own.topology, [ShardId(2)], wanted, purpose="test")
        read_only_fleet.carry_out(fleet_own.topology, found, wanted, wait_s=0, progress=Silent())

    fleet_own.put(2)
    switch(Wanted.on)
    fleet_own.move([2, 3], "b")
    assert fleet_own.copy("b").state is MoveState.done
    assert fleet_own.copy("b").proof == "compared"
    with refused(2):
        fleet_own.put(2)
    fleet_own.put(3)
    assert fleet_own.problems() == []
    switch(Wanted.off)
    fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT count(*) FROM shard2.photos") == [(3,)]
