"""The leash of a replication slot: a server ends what holds back too much WAL, without a client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.postgres import slots
from shardctl.state import leash
from shardctl.state.cluster import ddl
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.fixtures.servers.postgres import PgServer, StartServer

MOVE, SLOT = "5f3a9c1e", "shardctl_5f3a9c1e"
LIMIT = 4 << 20
DATABASE = "leashed"
SETTINGS = {"wal_level": "logical", "max_wal_size": "32MB", "min_wal_size": "32MB"}
PROGRAM = """
import os, signal, sys, psycopg
from shardctl.state import leash
opened = [psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2)]
leash.arm(*opened, "a", move=sys.argv[2], slot=sys.argv[3], limit_bytes=int(sys.argv[4]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server(pg_server: StartServer) -> PgServer:
    started = pg_server(SETTINGS)
    with started.connect() as session:
        session.execute(f"CREATE DATABASE {DATABASE}".encode())
    with started.connect(DATABASE) as session:
        session.execute(ddl().encode())
        session.execute("CREATE TABLE filled (text text)")
    return started


@pytest.fixture
def session(server: PgServer) -> Iterator[psycopg.Connection[Any]]:
    with server.connect(DATABASE) as opened:
        opened.execute(
            "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas,"
            " retired, plan, who) VALUES (%s, 'reserved', 'clone', 'a', 'c', '{}', '{}', '{}',"
            " '{}', 'a test')",
            [MOVE],
        )
        yield opened
        leash.end(opened, SLOT)
        opened.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        opened.execute("TRUNCATE shardctl.move, shardctl.move_step, shardctl.event, filled")


def physical(session: psycopg.Connection[Any]) -> None:
    assert slots.make(session, SLOT)


def arm_and_die(server: PgServer) -> None:
    """Arm the leash in a process that is killed as soon as it is done."""
    where = f"host=127.0.0.1 port={server.port} user=postgres dbname={DATABASE}"
    argv = [sys.executable, "-c", PROGRAM, where, MOVE, SLOT, str(LIMIT)]
    done = subprocess.run(argv, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})  # noqa: PTH109
    assert done.returncode == -signal.SIGKILL


def left(session: psycopg.Connection[Any]) -> list[str]:
    return [name for (name,) in session.execute("SELECT slot_name FROM pg_replication_slots")]


def write(session: psycopg.Connection[Any], megabytes: int) -> None:
    session.execute(
        "INSERT INTO filled SELECT repeat('x', 1000) FROM generate_series(1, %s)",
        [megabytes * 1000],
    )


def test_at_its_limit_the_server_drops_the_slot_though_who_made_it_was_killed(
    server: PgServer, session: psycopg.Connection[Any]
) -> None:
    session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    arm_and_die(server)
    write(session, 2)
    assert leash.is_armed(session, SLOT)
    assert left(session) == [SLOT]
    write(session, 6)
    wait_for(lambda: not left(session))
    wait_for(lambda: not leash.is_armed(session, SLOT))
    [(report, revision)] = session.execute("SELECT report, revision FROM shardctl.move").fetchall()
    assert report["wal_limit"]["limit_bytes"] == LIMIT
    assert LIMIT < report["wal_limit"]["held_bytes"] < 16 << 20
    assert revision == 2
    [(result,)] = session.execute("SELECT result FROM shardctl.event").fetchall()
    assert SLOT in result


def test_a_target_has_a_minute_to_claim_what_is_decided(
    server: PgServer, session: psycopg.Connection[Any]
) -> None:
    physical(session)
    session.execute("UPDATE shardctl.move SET state = 'promoting', changed = clock_timestamp()")
    arm_and_die(server)
    write(session, 8)
    with pytest.raises(AssertionError):
        wait_for(lambda: not left(session), seconds=1.5)
    session.execute("UPDATE shardctl.move SET changed = changed - interval '1 min'")
    wait_for(lambda: not left(session))
    wait_for(lambda: not leash.is_armed(session, SLOT))


def test_nobody_else_passes_for_it(server: PgServer, session: psycopg.Connection[Any]) -> None:
    """Any role may take such a name for its session, which is not ended and is no guard."""
    session.execute("CREATE ROLE stranger LOGIN")
    try:
        with closing(server.connect(DATABASE, user="stranger")) as other:
            other.execute(
                "SELECT set_config('application_name', %s, false)", [f"shardctl guard of {SLOT}"]
            )
            other.pgconn.send_query(b"SELECT pg_sleep(600)")
            wait_for(
                lambda: session.execute(
                    "SELECT FROM pg_stat_activity WHERE usename = 'stranger' AND state = 'active'"
                ).fetchall()
            )
            assert not leash.is_armed(session, SLOT)
            physical(session)
            arm_and_die(server)
            assert leash.is_armed(session, SLOT)
            leash.end(session, SLOT)
            assert not leash.is_armed(session, SLOT)
            other.cancel()
    finally:
        session.execute("DROP ROLE stranger")


def test_it_is_armed_before_there_is_a_slot(
    server: PgServer, session: psycopg.Connection[Any]
) -> None:
    arm_and_die(server)
    physical(session)
    assert leash.is_armed(session, SLOT)
    write(session, 8)
    wait_for(lambda: not left(session))
