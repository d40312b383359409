"""`status` and poolers: what a pause waits for, and poolers that are down."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from shardctl.checks import status
from tests.fixtures.fleets.pooled import load
from tests.fixtures.servers.pgbouncer import Admin
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.checks.status import PoolerStatus
    from tests.fixtures.fleets.pooled import AddPooler, PooledFleet


@pytest.fixture
def fleet(fleet_pooled: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler nobody uses yet."""
    return fleet_pooled


def look(fleet: PooledFleet) -> PoolerStatus:
    [pooler] = fleet.topology().poolers.values()
    return status.look_at_pooler(fleet.topology(), pooler)


def test_a_pause_names_the_client_whose_transaction_it_waits_for(fleet: PooledFleet) -> None:
    [pooler] = fleet.topology().poolers.values()
    with (
        fleet.pg_bouncer.connect("shard2", autocommit=False) as busy,
        Admin(pooler, fleet.topology().database, purpose="a test") as console,
    ):
        busy.execute("SELECT 1")
        console.send("PAUSE shard2")
        wait_for(lambda: look(fleet).paused == ("shard2",))
        [named] = look(fleet).waits_for
        assert named.startswith(f"{busy.info.user} on shard2 from ")
        done = fleet.here("status", "--sample", "0")
        assert named in done.stderr
        busy.commit()
        wait_for(console.ready)
        assert look(fleet).waits_for == ()
        console.resume("shard2")


def test_a_pooler_that_is_down_is_a_row_and_the_rest_is_told(
    fleet: PooledFleet, pooler_for: AddPooler
) -> None:
    load(fleet, pooler_for(fleet, "p2"))
    fleet.pg_bouncer.stop()
    done = fleet.here("status", "--sample", "0")
    as_json = fleet.here("status", "--sample", "0", "-o", "json")
    assert (done.returncode, as_json.returncode) == (0, 0)
    assert re.search(r"(?m)^ p1 +down( +-){5} *$", done.stdout), done.stdout
    assert re.search(r"(?m)^ p2 +up ", done.stdout)
    [line] = done.stderr.splitlines()
    assert "p1" in line
    told = json.loads(as_json.stdout)
    assert [(node["name"], node["state"]) for node in told["nodes"]] == [("a", "up"), ("b", "up")]
    down, up = told["poolers"]
    assert list(down) == list(up)
    assert {key for key, value in down.items() if value not in (None, [])} == {
        "name",
        "state",
        "error",
    }
    assert (down["state"], up["state"]) == ("down", "up")
