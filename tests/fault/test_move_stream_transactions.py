"""Streamed moves beside transactions that hold them up: an old one, and one of a million rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import Mover, MovingFleet

pytestmark = pytest.mark.fault

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"
BULK = 200_000


def told(mover: Mover, what: str) -> bool:
    """Read what it says, and tell whether it has said that."""
    with suppress(AssertionError):
        mover.next(seconds=0.1)
    return any(what in line for line in mover.said)


def test_a_bulk_commit_before_the_fence_does_not_hold_clients_up(
    fleet_stream: MovingFleet,
) -> None:
    """Its table is not published; its rows are decoded all the same."""
    fleet, target = fleet_stream, streamed.TARGET
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
