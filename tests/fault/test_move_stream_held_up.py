"""What holds the tables of moved shards while a streamed move wants its locks."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

SLOW = "SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1"
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
def held(fleet: MovingFleet, statement: str, **who: Any) -> Iterator[None]:
    """Hold what a statement locks in an open transaction."""
    with fleet.log_in("a", autocommit=False, application_name="report", **who) as session:
        session.execute(statement.encode())
        yield
        session.rollback()


@contextmanager
def running(
    fleet: MovingFleet,
    *statements: str,
    lock: str = "granted AND mode = 'ShareUpdateExclusiveLock'",
) -> Iterator[None]:
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
    fleet.ask("a", "ALTER SYSTEM RESET autovacuum_naptime")
    fleet.ask("a", "SELECT pg_reload_conf()")


def clear(fleet: MovingFleet) -> None:
    fleet.ask(fleet.owner, "DROP TABLE shard2.filled")


def end_vacuums(fleet: MovingFleet) -> None:
    """End automatic vacuums, so that nothing waits for one that does not give way."""
    fleet.ask("a", "ALTER SYSTEM SET autovacuum_naptime = '1d'")
    fleet.ask("a", "SELECT pg_reload_conf()")
    worker = "backend_type = 'autovacuum worker'"
    fleet.ask("a", f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {worker}")


def old_writer(fleet: MovingFleet) -> psycopg.Connection[Any]:
    """Open a transaction that an index which is made concurrently has to wait for."""
    session = fleet.log_in("a", autocommit=False)
    session.execute("INSERT INTO shard1.writes (token) VALUES (-1)")
    return session


def in_the_way(fleet: MovingFleet, kind: str, stack: ExitStack) -> str:
    """Hold a moved table in some way, and give what the message has to say."""
    match kind:
        case "LOCK TABLE":
            statement = "LOCK TABLE shard2.filled IN SHARE MODE"
            stack.enter_context(held(fleet, statement, user="postgres"))
            return "application report"
        case "ADD COLUMN":
            statement = "ALTER TABLE shard2.filled ADD extra integer"
            stack.enter_context(held(fleet, statement, user="postgres"))
            return "AccessExclusiveLock on shard2.filled"
        case "VACUUM":
            stack.enter_context(running(fleet, *SLOW.split("; "), WHOLE))
            return "application report"
        case "VACUUM FULL":
            stack.enter_context(held(fleet, "SELECT count(*) FROM shard2.filled", user="postgres"))
            stack.enter_context(running(fleet, "VACUUM FULL shard2.filled", lock="NOT granted"))
            return "waits for AccessExclusiveLock on shard2.filled"
        case _:
            stack.enter_context(old_writer(fleet))
            statement = "CREATE INDEX CONCURRENTLY texts ON shard2.filled (text)"
            stack.enter_context(running(fleet, statement))
            return "application report"


KINDS = ("LOCK TABLE", "ADD COLUMN", "VACUUM", "VACUUM FULL", "CREATE INDEX CONCURRENTLY")


def test_the_fence_waits_within_its_bound_and_says_who_was_in_the_way(
    filled: MovingFleet,
) -> None:
    """One move, whose cutover is tried beside one after the other."""
    fleet, target = filled, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        verb = "start"
        for kind in KINDS:
            mover = fleet.mover(verb, "span logins begin")
            verb = "resume"
            mover.at("span logins begin")
            with ExitStack() as stack:
                expected = in_the_way(fleet, kind, stack)
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
    assert streamed.left(fleet) == []
    clear(fleet)
    prove(fleet, clients)


def test_what_does_not_give_way_is_named_before_clients_wait(filled: MovingFleet) -> None:
    fleet, target = filled, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", "step cutover run", "span pause begin")
        mover.at("step cutover run")
        with running(fleet, *SLOW.split("; "), WHOLE):
            mover.go()
            assert mover.end() == 3, mover.said
            assert any(WHOLE in one for one in mover.said), mover.said
        finish(fleet, "resume")
    assert clients.errors() == []
    assert streamed.left(fleet) == []
    clear(fleet)
    prove(fleet, clients)


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
        fleet.ask("a", "ALTER SYSTEM SET autovacuum_naptime = '1s'")
        fleet.ask("a", "SELECT pg_reload_conf()")
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
    assert streamed.left(fleet) == []
    end_vacuums(fleet)
    clear(fleet)
    prove(fleet, clients)


def test_readers_and_dumps_of_the_source_hold_nothing_up(filled: MovingFleet) -> None:
    fleet, target = filled, streamed.TARGET
    source = fleet.servers["a"]
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", "span logins begin")
        mover.at("span logins begin")
        argv = [source.server.binaries.program("pg_dump"), "-h", "127.0.0.1", "-p",
                str(source.port), "-U", "postgres", "--schema=shard2", "moving"]  # fmt: skip
        with held(fleet, "LOCK TABLE shard2.writes IN ACCESS SHARE MODE", user="postgres"):
            dump = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            locks = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pg_dump'"
            wait_for(lambda: fleet.ask("a", locks) or dump.poll() is not None)
            mover.go()
            assert mover.end() == 0, mover.said
            dump.communicate()
    assert clients.errors() == []
    assert streamed.left(fleet) == []
    clear(fleet)
    prove(fleet, clients)
