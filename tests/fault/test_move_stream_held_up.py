"""What holds the tables of moved shards while a streamed move wants its locks."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

HAS, WANTS = "granted AND mode = 'ShareUpdateExclusiveLock'", "NOT granted"
SLOW = ("SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1")
WHOLE = "VACUUM (DISABLE_PAGE_SKIPPING) shard2.filled"
"""It takes its time also where an automatic one was there before."""
FILLED = (
    "CREATE TABLE shard2.filled (id bigint PRIMARY KEY, text text)",
    "INSERT INTO shard2.filled SELECT n, repeat('x', 1000) FROM generate_series(1, 3000) AS n",
)
"""A table whose vacuum takes long enough if it is throttled."""
AUTOVACUUM = (
    "ALTER TABLE shard2.filled SET (autovacuum_vacuum_cost_delay = 100,"
    " autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_insert_threshold = 0,"
    " autovacuum_vacuum_insert_scale_factor = 0, autovacuum_freeze_max_age = 100000)"
)
AGED = """DO $$ BEGIN
FOR n IN 1..100100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"""
"""Uses up the transaction ids after which an autovacuum does not give way."""
VACUUMING = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' AND query LIKE"


@contextmanager
def held(fleet: MovingFleet, statement: str) -> Iterator[None]:
    """Hold what a statement locks in an open transaction."""
    who = {"user": "postgres", "application_name": "report"}
    with fleet.log_in("a", autocommit=False, **who) as session:
        session.execute(statement.encode())
        yield
        session.rollback()


@contextmanager
def running(fleet: MovingFleet, *statements: str, lock: str) -> Iterator[None]:
    """Run statements of which the last does not end by itself, until it has or wants its lock."""
    with fleet.log_in("a", user="postgres", application_name="report") as session:
        for statement in statements[:-1]:
            session.execute(statement.encode())
        last = threading.Thread(target=_run, args=(session, statements[-1]))
        last.start()
        locks = f"SELECT 1 FROM pg_locks WHERE {lock} AND relation::regclass = %s::regclass"
        mine = f"{locks} AND pid = {session.info.backend_pid}"
        wait_for(lambda: fleet.ask("a", mine, "shard2.filled"))
        try:
            yield
        finally:
            fleet.ask("a", "SELECT pg_terminate_backend(%s, 5000)", session.info.backend_pid)
            last.join(10)


def _run(session: psycopg.Connection[Any], statement: str) -> None:
    with suppress(psycopg.OperationalError):  # it is terminated
        session.execute(statement.encode())


@pytest.fixture
def filled(fleet_stream: MovingFleet) -> Iterator[MovingFleet]:
    """Give a fleet with a larger table in a moved shard."""
    fleet = fleet_stream
    for statement in FILLED:
        fleet.ask("a", statement)
    fleet.choice = dataclasses.replace(fleet.choice, max_pause_s=4.0)
    yield fleet
    fleet.set("a", "autovacuum_naptime", None)


def end_vacuums(fleet: MovingFleet) -> None:
    """End automatic vacuums, so that nothing waits for one that does not give way."""
    fleet.set("a", "autovacuum_naptime", "1d")
    worker = "backend_type = 'autovacuum worker'"
    fleet.ask("a", f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {worker}")


KINDS = {
    "LOCK TABLE": ("LOCK TABLE shard2.filled IN SHARE MODE", (), "application report"),
    "ADD COLUMN": (
        "ALTER TABLE shard2.filled ADD extra integer", (), "AccessExclusiveLock on shard2.filled",
    ),
    "VACUUM": ("", (*SLOW, WHOLE), "application report"),
    "VACUUM FULL": (
        "SELECT count(*) FROM shard2.filled", ("VACUUM FULL shard2.filled",),
        "waits for AccessExclusiveLock on shard2.filled",
    ),
    "CREATE INDEX CONCURRENTLY": (
        "INSERT INTO shard1.writes (token) VALUES (-1)",
        ("CREATE INDEX CONCURRENTLY texts ON shard2.filled (text)",), "application report",
    ),
}  # fmt: skip
"""What a transaction holds open, what runs beside it, and what the message has to say."""


def test_the_fence_waits_within_its_bound_and_says_who_was_in_the_way(
    filled: MovingFleet,
) -> None:
    """One move, whose cutover is tried beside one after the other."""
    fleet, target = filled, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        verb = "start"
        for kind, (holding, statements, expected) in KINDS.items():
            mover = fleet.mover(verb, "span logins begin")
            verb = "resume"
            mover.at("span logins begin")
            with ExitStack() as stack:
                if holding:
                    stack.enter_context(held(fleet, holding))
                if statements:
                    lock = WANTS if kind == "VACUUM FULL" else HAS
                    stack.enter_context(running(fleet, *statements, lock=lock))
                mover.go()
                assert mover.end() == 3, (kind, mover.said)
                told = [o for o in mover.said if o.startswith(("WritersLeft", "FenceRefused"))]
                assert told, (kind, mover.said)
                assert expected in told[0], (kind, told)
            clients.wait_served()
            fleet.ask("a", "DROP INDEX IF EXISTS shard2.texts")
        finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert clients.gap() < SERVED_S + 5
    fleet.ask(fleet.owner, "DROP TABLE shard2.filled")
    prove_streamed(fleet, clients)


@pytest.mark.parametrize("kind", ["autovacuum", "wraparound"])
def test_an_autovacuum_gives_way_unless_it_prevents_wraparound(
    filled: MovingFleet, kind: str
) -> None:
    fleet, target = filled, streamed.TARGET
    fleet.ask("a", AUTOVACUUM)
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", "step cutover run")
        mover.at("step cutover run")
        if kind == "wraparound":
            fleet.ask("a", AGED)
        fleet.set("a", "autovacuum_naptime", "1s")
        like = "%shard2.filled (to prevent%" if kind == "wraparound" else "%shard2.filled%"
        wait_for(lambda: fleet.ask("a", f"{VACUUMING} '{like}'"), seconds=60)
        mover.go()
        code = mover.end()
        if kind == "autovacuum":
            assert code == 0, mover.said
        else:
            assert code == 3, mover.said
            assert any("to prevent wraparound" in one for one in mover.said), mover.said
            finish(fleet, "abort")
        clients.wait_served()
    assert clients.errors() == []
    end_vacuums(fleet)
    fleet.ask(fleet.owner, "DROP TABLE shard2.filled")
    prove_streamed(fleet, clients)
