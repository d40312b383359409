"""`status` and poolers: versions, clients, servers, who waits and why, as it really is."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from shardctl.checks import status
from shardctl.pgbouncer.console import Console
from tests.fixtures.fleets.healthy import offer
from tests.fixtures.fleets.pooled import STATS_USER, PooledFleet
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.status import PoolerStatus
    from tests.fixtures.fleets.pooled import AddPooler
    from tests.fixtures.servers.pgbouncer import PgBouncer


@pytest.fixture
def fleet(fleet_pooled_healthy: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler nobody uses yet."""
    return fleet_pooled_healthy


def look(fleet: PooledFleet) -> PoolerStatus:
    [one] = status.observe_poolers(fleet.topology())
    return one


@contextmanager
def asking(pooler: PgBouncer, alias: str) -> Iterator[threading.Thread]:
    """Have a client whose question cannot be answered yet; it is by the end of the block."""

    def ask() -> None:
        with pooler.connect(alias) as client:
            client.execute("SELECT 1")

    thread = threading.Thread(target=ask)
    thread.start()
    yield thread
    thread.join(120)
    assert not thread.is_alive()


def test_clients_and_servers_are_counted_over_all_pools(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    with (
        pooler.connect("shard2", autocommit=False) as busy,
        pooler.connect("shard2"),  # a client that asks nothing needs no server
        pooler.connect("shard6") as other,
        pooler.connect("shard6", user=fleet.role) as application,
    ):
        for client in (busy, other, application):
            client.execute("SELECT 1")
        seen = look(fleet)
        assert (seen.clients, seen.servers, seen.waiting) == (4, 3, 0)
    wait_for(lambda: look(fleet).clients == 0)
    # What was opened for clients stays, for the next ones.
    assert look(fleet).servers == 3


def test_paused_aliases_are_named_and_who_waits_for_them_counted(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    with pooler.connect("shard2") as first:  # a new pool would wait for a login, too
        first.execute("SELECT 1")
    for alias in ("shard2", "shard6"):
        pooler.admin(f"PAUSE {alias}")
    with asking(pooler, "shard2"):
        wait_for(lambda: look(fleet).waiting == 1)
        seen = look(fleet)
        assert sorted(seen.paused) == ["shard2", "shard6"]
        assert (seen.clients, seen.servers) == (1, 0)
        pooler.admin("RESUME shard2")
    as_admin = look(fleet)
    assert as_admin.paused == ("shard6",)
    pooler.admin("RESUME shard6")
    pooler.admin("PAUSE")
    assert len(look(fleet).paused) == 10
    pooler.admin("RESUME")
    assert look(fleet).paused == ()
    # Who may only look sees the same.
    pooler.admin("PAUSE shard6")
    fleet.change(admin_user=STATS_USER)
    assert look(fleet).paused == as_admin.paused


def test_a_pause_names_the_client_whose_transaction_it_waits_for(fleet: PooledFleet) -> None:
    [pooler] = fleet.topology().poolers.values()
    with (
        fleet.pg_bouncer.connect("shard2", autocommit=False) as busy,
        Console(pooler, fleet.topology().database, purpose="a test") as console,
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
    offer(fleet, pooler_for, "p2")
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
