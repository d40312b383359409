"""Clones while others hold what the move needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

INSERT = "INSERT INTO shard2.writes (token) VALUES (-1)"
COUNT = "SELECT count(*) FROM shard2.writes WHERE token = -1"
HELD = {
    "pooled": ("INSERT INTO writes (token) VALUES (-1)", "PauseFailed"),
    "direct": (INSERT, "WritersLeft"),
    "ddl": ("CREATE TABLE shard2.made ()", "FenceRefused"),
    "grant": ("GRANT USAGE ON SCHEMA shard2 TO PUBLIC", "FenceRefused"),
}
"""What a transaction has done that goes on, and the error with which the cutover is called off."""


@pytest.mark.parametrize("kind", HELD)
def test_a_transaction_that_goes_on_calls_the_cutover_off(
    fleet_points: MovingFleet, kind: str
) -> None:
    statement, error = HELD[kind]
    with Clients(fleet_points) as clients:
        if kind == "pooled":
            session = fleet_points.pg_bouncer.connect("shard2", fleet_points.role)
        else:
            user = fleet_points.role if kind == "direct" else "postgres"
            session = fleet_points.log_in("a", user=user)
        with session, session.transaction():
            session.execute(statement.encode())
            mover = fleet_points.mover("start")
            assert mover.end() == 3
            assert any(line.startswith(error) for line in mover.said), mover.said
            assert fleet_points.state() == "undone"
            clients.wait_served()
        finish(fleet_points, "abort" if kind == "grant" else "resume")
    assert clients.errors() == []
    assert clients.gap() < SERVED_S
    if kind in {"pooled", "direct"}:
        assert fleet_points.ask("c", COUNT) == [(1,)]
    if kind == "ddl":
        fleet_points.ask("c", "DROP TABLE shard2.made")
    if kind == "grant":
        fleet_points.ask("a", "REVOKE USAGE ON SCHEMA shard2 FROM PUBLIC")
    prove(fleet_points, clients)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_transaction_is_ended_where_the_operator_wants_it_unless_it_is_prepared(
    fleet_points: MovingFleet, *, prepared: bool
) -> None:
    fleet_points.choice = dataclasses.replace(fleet_points.choice, terminate=True)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span arm guards begin")
        mover.at()
        session = fleet_points.log_in("a", user="postgres")
        session.execute(f"BEGIN; {INSERT}".encode())
        if prepared:
            session.execute("PREPARE TRANSACTION 'moved'")
        mover.go()
        assert mover.end() == (3 if prepared else 0), mover.said
        if prepared:
            fleet_points.ask("a", "COMMIT PREPARED 'moved'")
            finish(fleet_points, "resume")
        else:
            with pytest.raises(psycopg.OperationalError):
                session.execute("COMMIT")
        session.close()
        clients.wait_served()
    assert clients.gap() < SERVED_S
    assert fleet_points.ask("c", COUNT) == [(int(prepared),)]
    prove(fleet_points, clients)


@pytest.mark.parametrize("point", ["span fence begin", "span route begin"])
def test_a_synchronous_standby_that_does_not_answer(fleet_points: MovingFleet, point: str) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at()
        fleet_points.set("a", "synchronous_standby_names", "nobody")
        try:
            mover.go()
            code = mover.end()
            if point == "span route begin":
                clients.wait_served({2, 3})
        finally:
            fleet_points.set("a", "synchronous_standby_names", None)
        if code != 0:
            finish(fleet_points, "resume")
        clients.wait_served()
    assert clients.errors() == []
    prove(fleet_points, clients)
