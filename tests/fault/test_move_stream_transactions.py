"""Streamed moves beside transactions that hold them up: an old one, and one of a million rows."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.fault.conftest import EVERY_POINT
from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.clone_streamed import Follows
    from tests.fixtures.moves.stopping import Mover

pytestmark = pytest.mark.fault

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"
BULK = 1_000_000 if os.environ.get(EVERY_POINT) else 200_000


def told(mover: Mover, what: str) -> bool:
    """Read what it says, and tell whether it has said that."""
    with suppress(AssertionError):
        mover.next(seconds=0.1)
    return any(what in line for line in mover.said)


def test_ctrl_c_ends_the_wait_for_a_slot_and_leaves_none(fleet_followed: Follows) -> None:
    fleet, target = fleet_followed
    with (
        Clients(fleet, target=target) as clients,
        fleet.log_in("a", user="postgres", autocommit=False) as old,
    ):
        old.execute("INSERT INTO shard0.writes (token) VALUES (-1)")
        mover = fleet.mover("start")
        waits = f"when this transaction ends: session {old.info.backend_pid} ("
        wait_for(lambda: told(mover, waits), seconds=60)
        mover.signal(signal.SIGINT)
        assert mover.end() == 130, mover.said
        assert fleet.ask("a", SLOTS) == []  # a clone's own one is physical
        clients.wait_served()
        finish(fleet, "abort")
        old.rollback()
    assert clients.errors() == []
    assert fleet.owner == "a"
    assert streamed.left(fleet) == []
    prove(fleet, clients)


def test_a_bulk_commit_before_the_fence_does_not_hold_clients_up(
    fleet_followed: Follows,
) -> None:
    """Its table is not published; its rows are decoded all the same."""
    fleet, target = fleet_followed
    fleet.ask("a", "CREATE TABLE public.bulk (id bigint, note text)")
    rows = f"SELECT n, md5(n::text) FROM generate_series(1, {BULK}) AS n"
    with (
        Clients(fleet, target=target) as clients,
        fleet.log_in("a", user="postgres", autocommit=False) as bulk,
    ):
        mover = fleet.mover("start", "step cutover run", "span fence begin")
        mover.at("step cutover run")
        bulk.execute(f"INSERT INTO public.bulk {rows}".encode())
        mover.go()
        mover.at("span fence begin")
        bulk.commit()
        mover.go()
        if mover.end() != 0:
            finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5  # the pause of 5 s, and what a busy machine adds
    assert streamed.left(fleet) == []
    prove(fleet, clients)
