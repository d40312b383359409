"""The open loop of `sandbox traffic`: a new login for each operation, at a fixed rate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.local import Local
from shardctl.topology.model import ShardId
from shardctl.traffic.client_routes import TABLE
from shardctl.traffic.load import Load
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.servers.postgres import SUPERUSER, wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

PER_S = 100


def mini_move(fleet: PooledFleet, shard: int, *, outage_s: float) -> None:
    """Move a shard from a to b: fence, wait for writers, copy, claim, tell a."""
    live, retired = f"shard{shard}", f"shard{shard}__retired_00000000"
    new_map = (
        f"UPDATE shardctl.map SET node = 'b' WHERE shard = {shard};"
        "UPDATE shardctl.cluster SET map_version = map_version + 1;"
    )
    a, b = fleet.servers["a"].server, fleet.servers["b"].server
    with fleet.connect("a") as source:
        source.execute(f"ALTER SCHEMA {live} RENAME TO {retired}".encode())
        began = time.monotonic()
        # What had found the table under its old name writes until here.
        source.execute(f"BEGIN; LOCK TABLE {retired}.{TABLE}; COMMIT".encode())
        where = ["-h", a.node.host, "-p", str(a.node.port), "-U", SUPERUSER, fleet.database]
        dump = Local().run([a.binaries.program("pg_dump"), "-n", retired, *where]).stdout
        wait_for(lambda: time.monotonic() > began + outage_s)
        script = f"{dump.replace(retired, live)}{new_map} SELECT shardctl.open_block({shard});"
        where = ["-h", b.node.host, "-p", str(b.node.port), "-U", SUPERUSER, fleet.database]
        words = ["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1"]
        Local().run([b.binaries.program("psql"), *words, *where], input=script)
        source.execute(new_map.encode())


@pytest.mark.proof
def test_where_logins_know_the_map_they_follow_a_shard_that_moves(
    fleet_pooled: PooledFleet,
) -> None:
    shards = [ShardId(1), ShardId(5)]
    with Load(
        fleet_pooled.topology(), clients=2, rate=40, logins=PER_S, aliases="node", shards=shards
    ) as load:
        wait_for_writes(load)
        mini_move(fleet_pooled, 1, outage_s=0.2)
        wait_for_writes(load, 200)
        report = load.check()
    assert (report.errors, report.intact, report.moved) == (0, True, (1,))
    assert report.fenced
    assert (report.clients, report.ok) == (2, True)
    assert report.logins is not None
    assert (report.logins.latencies.longest_ms(moved=True) or 0) > 100
