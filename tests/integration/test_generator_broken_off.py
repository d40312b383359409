"""The generator when sessions die, servers crash and schemas are renamed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg

from tests.fixtures.fleets.generators import (
    ONE_BIT,
    Install,
    ask,
    ids,
)

if TYPE_CHECKING:
    Connection = psycopg.Connection[Any]


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
