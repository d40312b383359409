"""Logins and questions that replay cancels on a standby: the source locks catalogs all the time."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from shardctl.hosts.local import Local
from shardctl.moves import clone_cutover
from shardctl.moves.context import Use
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import CLONE
from shardctl.moves.step import drive
from shardctl.pgbouncer import guard
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import connection, replay
from tests.fixtures.servers.clones import soon
from tests.fixtures.servers.postgres import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import psycopg

    from shardctl.postgres.clone import Clone
    from tests.fixtures.moves.spares import MovedFleet
    from tests.fixtures.servers.clones import Cloning

CONFLICT = "conflict with recovery"
ENOUGH = 3
SLOW = """CREATE OR REPLACE FUNCTION shardctl.open_block_at(
    register regclass, block bigint, not_before bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM public.locked;
    PERFORM pg_sleep(0.2);
    RAISE read_only_sql_transaction;
END $$"""
"""What opens a block, so slow that replay meets it."""


@contextmanager
def locking(source: Callable[[], psycopg.Connection[Any]]) -> Iterator[None]:
    """Lock catalogs on the source that every login reads, again and again."""
    stop = threading.Event()

    def lock() -> None:
        with source() as session:
            while not stop.wait(0.02):  # longer than a login takes
                session.execute(
                    "BEGIN; LOCK TABLE pg_database, pg_authid, pg_db_role_setting, pg_class; COMMIT"
                )

    thread = threading.Thread(target=lock)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cancelled(clone: Clone) -> int:
    """Count the logins that replay has broken off."""
    log = clone.server.log_tail(lines=10_000)
    return sum("FATAL" in line and CONFLICT in line for line in log)


def test_logins_that_replay_breaks_off_are_tried_again(cloning: Cloning) -> None:
    cloning.start()
    with locking(cloning.server.connect):
        deadline = soon(60)
        while cancelled(cloning.clone) < ENOUGH:
            for _ in range(20):
                connection.connect(cloning.target, cloning.database, purpose="test").close()
            assert deadline > soon(0)


def test_a_guards_question_that_replay_breaks_off_is_asked_again(
    cloning: Cloning, tmp_path: Path
) -> None:
    cloning.start()
    dsn = make_conninfo("", host="127.0.0.1", port=cloning.port, user=SUPERUSER, dbname="postgres")
    asked = Question(dsn, "SELECT count(*) < 0 FROM pg_class, pg_authid")
    with locking(cloning.server.connect):
        deadline = soon(60)
        before = cancelled(cloning.clone)
        while cancelled(cloning.clone) == before:
            answer = replay.again(
                lambda: guard.rehearse(Local(), name="x", directory=tmp_path, question=asked)
            )
            assert answer is False
            assert deadline > soon(0)


def test_a_cutovers_snapshot_is_held_though_replay_breaks_off_its_login(
    fleet_spares: MovedFleet,
) -> None:
    world = fleet_spares.world([2, 3], "c")
    drive(
        world,
        list(takewhile(lambda step: step.name != "cutover", METHODS[CLONE].steps)),
        lambda _: None,
    )
    with locking(lambda: fleet_spares.connect("a")):
        deadline = soon(60)
        while cancelled(world.clone) < ENOUGH:
            clone_cutover.hold_snapshot(world)
            assert world.snapshot
            world.require_lock(world.plan.target)
            world.sessions.pop((world.plan.target, Use.snapshot)).close()
            assert deadline > soon(0)
    world.close()
