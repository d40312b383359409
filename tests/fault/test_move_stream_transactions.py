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
    from tests.fixtures.moves.stopping import Mover, MovingFleet

pytestmark = pytest.mark.fault

SLOTS = "SELECT slot_name FROM pg_replication_slots"
BULK = 1_000_000 if os.environ.get(EVERY_POINT) else 200_000


def told(mover: Mover, what: str) -> bool:
    """Read what it says, and tell whether it has said that."""
    with suppress(AssertionError):
        mover.next(seconds=0.1)
    return any(what in line for line in mover.said)


def test_ctrl_c_ends_the_wait_for_a_slot_and_leaves_none(fleet_stream: MovingFleet) -> None:
    with (
        Clients(fleet_stream, target="b") as clients,
        fleet_stream.log_in("a", user="postgres", autocommit=False) as old,
    ):
        old.execute("INSERT INTO shard0.writes (token) VALUES (-1)")
        mover = fleet_stream.mover("start")
        waits = f"when this transaction ends: session {old.info.backend_pid} ("
        wait_for(lambda: told(mover, waits), seconds=60)
        mover.signal(signal.SIGINT)
        assert mover.end() == 130, mover.said
        assert fleet_stream.ask("a", SLOTS) == []
        clients.wait_served()
        finish(fleet_stream, "abort")
        old.rollback()
    assert clients.errors() == []
    assert fleet_stream.owner == "a"
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


def test_a_bulk_commit_before_the_fence_does_not_hold_clients_up(
    fleet_stream: MovingFleet,
) -> None:
    """Its table is not published; its rows are decoded all the same."""
    fleet_stream.ask("a", "CREATE TABLE public.bulk (id bigint, note text)")
    rows = f"SELECT n, md5(n::text) FROM generate_series(1, {BULK}) AS n"
    with (
        Clients(fleet_stream, target="b") as clients,
        fleet_stream.log_in("a", user="postgres", autocommit=False) as bulk,
    ):
        mover = fleet_stream.mover("start", "step cutover run", "span fence begin")
        mover.at("step cutover run")
        bulk.execute(f"INSERT INTO public.bulk {rows}".encode())
        mover.go()
        mover.at("span fence begin")
        bulk.commit()
        mover.go()
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5  # the pause of 5 s, and what a busy machine adds
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)
