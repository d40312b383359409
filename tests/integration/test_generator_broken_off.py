"""The generator when sessions die, servers crash and schemas are renamed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors

from tests.fixtures.fleets.generators import (
    ONE_BIT,
    Install,
    Installed,
    ask,
    assert_sound,
    ids,
    register_locks,
)
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    Connection = psycopg.Connection[Any]


@dataclass
class Parked:
    """A session whose statement waits in a thread of its own."""

    session: Connection
    thread: threading.Thread
    error: psycopg.Error | None = None

    @property
    def pid(self) -> int:
        return self.session.info.backend_pid


def park(session: Connection, query: str) -> Parked:
    def run() -> None:
        try:
            session.execute(query.encode())
        except psycopg.Error as error:
            parked.error = error

    parked = Parked(session, threading.Thread(target=run))
    parked.thread.start()
    return parked


def hold_lock(session: Connection) -> None:
    """Take the lock under which openers write registers, until the transaction ends."""
    session.execute("BEGIN")
    session.execute("LOCK TABLE shardctl.cluster IN SHARE UPDATE EXCLUSIVE MODE")


@pytest.mark.parametrize(
    ("how", "begin"), [("pg_terminate_backend", ""), ("pg_cancel_backend", "BEGIN; SAVEPOINT s")]
)
def test_a_session_that_dies_waiting_for_the_lock_leaves_nothing(
    install: Install, how: str, begin: str
) -> None:
    database = install()
    with contextlib.ExitStack() as stack:
        observer, outer, *others = (stack.enter_context(_closing(database)) for _ in range(6))
        hold_lock(outer)
        for session in others:
            session.execute((begin or "SELECT").encode())
        parked = [park(session, "SELECT shard1.next_id()") for session in others]
        wait_for(lambda: register_locks(observer, granted=False) == len(parked))
        victims = parked[:3]
        for victim in victims:
            assert ask(observer, f"SELECT {how}(%s)", victim.pid)
            victim.thread.join(120)
            assert victim.error is not None
        wait_for(lambda: register_locks(observer, granted=False) == len(parked) - len(victims))
        assert ask(observer, f"SELECT {how}(%s)", outer.info.backend_pid)
        if how == "pg_cancel_backend":  # idle: what ends it is its own end
            outer.execute("ROLLBACK")
        parked[3].thread.join(120)
        assert parked[3].error is None
        observer.execute("SET statement_timeout = '5s'")
        assert_sound([ids(observer, 3000)])
        # Those that were cancelled, and the one that went on, are still in their transactions.
        assert register_locks(observer) == 0


@contextlib.contextmanager
def _closing(database: Installed) -> Iterator[Connection]:
    session = database.connect()
    try:
        yield session
    finally:
        session.close()


def test_ids_around_crashes_are_distinct(install: Install) -> None:
    database = install(ONE_BIT)
    with database.connect() as session:
        session.execute("CREATE TABLE shard1.t (id bigint DEFAULT shard1.next_id(), round int)")
    written: list[int] = []

    def write(number: int, started: threading.Barrier) -> list[int]:
        query = f"INSERT INTO shard1.t (round) VALUES ({number}) RETURNING id"
        made: list[int] = []
        with contextlib.suppress(psycopg.OperationalError), database.connect() as session:
            # Time runs ahead of the clock, so that a register that fell back would be seen.
            session.execute("INSERT INTO shard1.t (round) SELECT -1 FROM generate_series(1, 1000)")
            while True:
                made.append(ask(session, query))
                if len(made) == 20:
                    started.wait(120)
        return made

    for number in range(3):
        started = threading.Barrier(5)
        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, number, started) for _ in range(4)]
            try:
                started.wait(120)
            finally:
                database.server.stop("immediate")
                for writer in writers:
                    writer.exception(30)
                database.server.start()
            for writer in writers:
                made = writer.result()
                assert all(a < b for a, b in itertools.pairwise(made))
                written += made
    assert len(set(written)) == len(written)
    with database.connect() as session:
        ids(session, 500)
        session.execute("INSERT INTO shard1.t (round) SELECT -2 FROM generate_series(1, 1000)")
        assert ask(session, "SELECT count(*) - count(DISTINCT id) FROM shard1.t") == 0
        kept = {row[0] for row in session.execute("SELECT id FROM shard1.t WHERE round >= 0")}
        assert kept >= set(written)
        last = "SELECT max(id) FILTER (WHERE round >= -1) < min(id) FILTER (WHERE round = -2)"
        assert ask(session, f"{last} FROM shard1.t")


@pytest.mark.parametrize("qualified", [True, False])
def test_prepared_inserts_fail_while_the_schema_is_renamed_and_work_again_after(
    install: Install, qualified: bool
) -> None:
    database = install()
    with database.connect() as session, database.connect() as fence:
        session.execute("SET search_path = shard1")
        session.execute("CREATE TABLE shard1.t (id bigint DEFAULT next_id(), v int)")
        table = "shard1.t" if qualified else "t"
        session.execute(f"PREPARE put AS INSERT INTO {table} (v) VALUES ($1) RETURNING id".encode())
        made = [ask(session, f"EXECUTE put({v})") for v in range(10)]  # a generic plan by then
        for _ in range(2):
            fence.execute("ALTER SCHEMA shard1 RENAME TO shard1__fenced")
            counter = "SELECT last_value FROM shard1__fenced.next_id_seq"
            before = ask(fence, counter)
            for _ in range(2):
                with pytest.raises((errors.UndefinedTable, errors.InvalidSchemaName)):
                    session.execute("EXECUTE put(-1)")
            with pytest.raises((errors.UndefinedTable, errors.InvalidSchemaName)):
                session.execute("INSERT INTO shard1__fenced.t (v) VALUES (-1)")
            with pytest.raises((errors.UndefinedTable, errors.InvalidSchemaName)):
                session.execute("SELECT shard1__fenced.next_id()")
            assert ask(fence, counter) == before
            assert ask(fence, "SELECT min(v) FROM shard1__fenced.t") == 0
            fence.execute("ALTER SCHEMA shard1__fenced RENAME TO shard1")
            made += [ask(session, "EXECUTE put(1)") for _ in range(3)]
            made += ids(session, 3)
    assert_sound([made])
