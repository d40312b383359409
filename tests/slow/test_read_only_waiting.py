"""`read-only` beside others: writers, readers, DDL, vacuum, a second operator."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import psycopg

from tests.fixtures.fleets.read_only import (
    OF_A_SHARD,
    refused,
    switch_off,
    switch_on,
    triggers,
    writing,
)
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet

PATIENT_S = 60.0
INSERT = b"INSERT INTO shard2.photos (user_id) VALUES (1)"


class Running:
    """Something that runs beside the test, and ends in an error or without one."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(PATIENT_S)
        assert self.over, "it hangs"
        if self.error is not None:
            raise self.error


def waiting(one: Fleet) -> bool:
    """Tell whether some `read-only` waits for a lock at this moment."""
    return bool(
        one.query(
            "a",
            "SELECT FROM pg_stat_activity WHERE application_name ~ '^shardctl read-only'"
            " AND wait_event_type = 'Lock'",
        )
    )


def test_it_ends_after_the_writers_that_began_before(fleet_tables: Fleet) -> None:
    with writing(fleet_tables, "a", "shard2") as session:
        running = Running(lambda: switch_on(fleet_tables, 1, 2, 3, wait_s=PATIENT_S))
        wait_for(lambda: triggers(fleet_tables, "a").keys() == {"shard1", "shard3"})
        wait_for(lambda: waiting(fleet_tables))
        assert not running.over
        session.execute(INSERT)  # it has begun, and may go on
    running.end()
    assert triggers(fleet_tables, "a")["shard2"] == OF_A_SHARD
    assert fleet_tables.query("a", "SELECT count(*) FROM shard2.photos") == [(2,)]
    with fleet_tables.connect("a") as session, refused(2):
        session.execute(INSERT)


def test_no_write_is_uncommitted_when_it_has_ended(fleet_tables: Fleet) -> None:
    """Whatever rows there are at the end stay: nobody is left who could add one."""
    stop = threading.Event()
    committed: list[int] = []
    others: list[psycopg.Error] = []

    def write() -> None:
        with fleet_tables.connect("a") as session:
            while not stop.is_set():
                try:
                    with session.transaction():
                        session.execute(INSERT)
                        session.execute("SELECT pg_sleep(0.01)")
                    committed.append(1)
                except psycopg.errors.ReadOnlySqlTransaction:
                    return
                except psycopg.Error as error:
                    others.append(error)
                    return

    writers = [Running(write) for _ in range(6)]
    try:
        wait_for(lambda: len(committed) > 20)
        switch_on(fleet_tables, 2, wait_s=PATIENT_S)
        [(rows,)] = fleet_tables.query("a", "SELECT count(*) FROM shard2.photos")
        for writer in writers:
            writer.end()
    finally:
        stop.set()
    assert others == []
    assert fleet_tables.query("a", "SELECT count(*) FROM shard2.photos") == [(rows,)]
    assert len(committed) == rows


def test_a_writer_that_does_not_end_is_named_and_the_others_are_done(fleet_tables: Fleet) -> None:
    with writing(fleet_tables, "a", "shard2", application_name="import") as session:
        pid = session.info.backend_pid
        with raises_code("shards_left") as left:
            switch_on(fleet_tables, 1, 2, 3, wait_s=0.3)
        assert left.value.exit_code == 3
        message = left.value.message
        assert (
            f"shards 2 were not changed: session {pid} (user postgres, application import, idle in "
            in message
        )
        assert message.count("shards ") == 1
        assert "shardctl read-only on" in left.value.hint
        session.execute(INSERT)
    assert triggers(fleet_tables, "a") == {"shard1": OF_A_SHARD, "shard3": OF_A_SHARD}
    switch_on(fleet_tables, 1, 2, 3)
    assert triggers(fleet_tables, "a")["shard2"] == OF_A_SHARD


def test_readers_never_wait_for_it(fleet_tables: Fleet) -> None:
    answers: list[object] = []
    stop = threading.Event()

    def read() -> None:
        # No time on a busy machine counts for that, only time in a queue for a lock.
        with fleet_tables.connect("a", options="-c lock_timeout=50ms") as session:
            while not stop.is_set():
                answers.append(session.execute("SELECT count(*) FROM shard2.photos").fetchone())

    with writing(fleet_tables, "a", "shard2"), contextlib.ExitStack() as at_end:
        at_end.callback(stop.set)
        reader = Running(read)
        with raises_code("shards_left"):
            switch_on(fleet_tables, 2, wait_s=2)
        stop.set()
        reader.end()
    assert len(answers) > 1


def test_other_writers_get_their_turn_while_it_waits_for_one(fleet_tables: Fleet) -> None:
    done: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with fleet_tables.connect("a") as session:
            while not stop.is_set():
                session.execute(INSERT)
                done.append(1)

    with writing(fleet_tables, "a", "shard2"), contextlib.ExitStack() as at_end:
        at_end.callback(stop.set)
        writer = Running(write)
        with raises_code("shards_left"):
            switch_on(fleet_tables, 2, wait_s=2)
        before = len(done)
        wait_for(lambda: len(done) > before)
        stop.set()
        writer.end()


def test_off_lets_writes_in_though_a_reader_keeps_the_triggers_from_going(
    fleet_tables: Fleet,
) -> None:
    switch_on(fleet_tables, 1, 2)
    with fleet_tables.connect("a", application_name="dump") as session, session.transaction():
        session.execute("SELECT FROM shard2.photos")
        with raises_code(
            "shards_left",
            match=r"shards 2 were not changed: session \d+ \(user \w+, application dump, ",
        ) as left:
            switch_off(fleet_tables, 1, 2, wait_s=0.3)
        assert left.value.exit_code == 3
        fleet_tables.execute("a", INSERT.decode())
        assert triggers(fleet_tables, "a") == {"shard2": OF_A_SHARD}
    switch_off(fleet_tables, 1, 2)
    assert triggers(fleet_tables, "a") == {}
