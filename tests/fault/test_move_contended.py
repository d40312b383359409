"""Shards that move while others hold what the move needs, or are at the move themselves."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

INSERT = "INSERT INTO shard2.writes (token) VALUES (-1)"
PAUSE = "span pause begin: Console.send"


def terminate(fleet: MovingFleet) -> None:
    """Let the move end what is in its way."""
    fleet.choice = dataclasses.replace(fleet.choice, terminate=True)


def patient(fleet: MovingFleet) -> None:
    """Give the move more time than any process of the test takes to start."""
    fleet.choice = dataclasses.replace(fleet.choice, max_pause_s=20.0)


@contextmanager
def held(session: psycopg.Connection[tuple[object, ...]], *statements: str) -> Iterator[None]:
    """Hold a transaction open with what these statements have done."""
    with session, session.transaction():
        for statement in statements:
            session.execute(statement.encode())
        yield


def holder(fleet: MovingFleet, kind: str) -> tuple[psycopg.Connection[tuple[object, ...]], str]:
    """Give a session of some kind, and a statement whose transaction a cutover has to wait for."""
    match kind:
        case "pooled":
            statement = "INSERT INTO writes (token) VALUES (-1)"
            return fleet.pg_bouncer.connect("shard2", fleet.role), statement
        case "reading":
            return fleet.pg_bouncer.connect("shard2", fleet.role), "SELECT count(*) FROM writes"
        case "direct":
            return fleet.log_in("a"), INSERT
        case "ddl":
            return fleet.log_in("a", user="postgres"), "CREATE TABLE shard2.made ()"
    return fleet.log_in("a", user="postgres"), "GRANT USAGE ON SCHEMA shard2 TO PUBLIC"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("pooled", "PauseFailed"),
        ("direct", "WritersLeft"),
        ("ddl", "FenceRefused"),
        ("grant", "FenceRefused"),
    ],
)
def test_a_transaction_that_goes_on_calls_the_cutover_off(
    fleet_points: MovingFleet, kind: str, error: str
) -> None:
    with Clients(fleet_points) as clients:
        session, statement = holder(fleet_points, kind)
        with held(session, statement):
            mover = fleet_points.mover("start")
            assert mover.end() == 3
            assert any(line.startswith(error) for line in mover.said), mover.said
            assert fleet_points.state() == "undone"
            clients.wait_served()
        finish(fleet_points, "resume" if kind in {"pooled", "direct", "ddl"} else "abort")
    assert clients.errors() == []
    assert clients.gap() < SERVED_S
    if kind in {"pooled", "direct"}:
        assert fleet_points.ask("c", "SELECT count(*) FROM shard2.writes WHERE token = -1") == [
            (1,)
        ]
    if kind == "ddl":
        assert fleet_points.ask("c", "SELECT to_regclass('shard2.made') IS NULL") == [(False,)]
        fleet_points.execute_everywhere("SELECT 1")
        fleet_points.ask("c", "DROP TABLE shard2.made")
    if kind == "grant":
        fleet_points.ask("a", "REVOKE USAGE ON SCHEMA shard2 FROM PUBLIC")
    prove(fleet_points, clients)


@pytest.mark.parametrize("kind", ["direct"])
def test_a_transaction_that_goes_on_is_ended_where_the_operator_wants_it(
    fleet_points: MovingFleet, kind: str
) -> None:
    terminate(fleet_points)
    with Clients(fleet_points) as clients:
        session, statement = holder(fleet_points, kind)
        session.execute("BEGIN")
        session.execute(statement.encode())
        mover = fleet_points.mover("start")
        assert mover.end() == 0, mover.said
        with pytest.raises(psycopg.OperationalError):
            session.execute("COMMIT")
        session.close()
        clients.wait_served()
    assert clients.gap() < SERVED_S
    assert fleet_points.ask("c", "SELECT count(*) FROM shard2.writes WHERE token = -1") == [(0,)]
    prove(fleet_points, clients)


def test_a_prepared_transaction_on_a_moved_shard_calls_the_cutover_off(
    fleet_points: MovingFleet,
) -> None:
    terminate(fleet_points)
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", "span arm guards begin")
        mover.at()
        with fleet_points.log_in("a", user="postgres") as session:
            session.execute(f"BEGIN; {INSERT}; PREPARE TRANSACTION 'moved'".encode())
        mover.go()
        assert mover.end() == 3
        assert any("a prepared transaction" in line for line in mover.said), mover.said
        clients.wait_served()
        fleet_points.ask("a", "COMMIT PREPARED 'moved'")
        finish(fleet_points, "resume")
    assert clients.gap() < SERVED_S
    assert fleet_points.ask("c", "SELECT count(*) FROM shard2.writes WHERE token = -1") == [(1,)]
    prove(fleet_points, clients)


@pytest.mark.parametrize("point", ["span fence begin", "span route begin"])
def test_a_synchronous_standby_that_does_not_answer(fleet_points: MovingFleet, point: str) -> None:
    with Clients(fleet_points) as clients:
        mover = fleet_points.mover("start", point)
        mover.at()
        fleet_points.ask("a", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        fleet_points.ask("a", "SELECT pg_reload_conf()")
        try:
            mover.go()
            code = mover.end()
            if point == "span route begin":
                clients.wait_served({2, 3})
        finally:
            fleet_points.ask("a", "ALTER SYSTEM RESET synchronous_standby_names")
            fleet_points.ask("a", "SELECT pg_reload_conf()")
        if code != 0:
            finish(fleet_points, "resume")
        clients.wait_served()
    assert clients.errors() == []
    prove(fleet_points, clients)
