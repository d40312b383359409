"""Moves in the worst of company: sessions ended, odd names and locks, an old disk in the place."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import clone_cutover
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose, prepare_behind_the_fence
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_prepared_transaction_that_locks_an_id_sequence_is_ended_and_not_waited_for(
    fleet_own_prepared: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statement = "ALTER SEQUENCE {retired}.next_id_block NO CYCLE"
    prepare_behind_the_fence(fleet_own_prepared, monkeypatch, statement, "late")
    ended = threading.Event()

    def unblock() -> None:
        if not ended.wait(20):
            waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            fleet_own_prepared.ask("c", f"SELECT pg_terminate_backend(pid) {waiting}")

    watch = threading.Thread(target=unblock)
    watch.start()
    try:
        fleet_own_prepared.move([2, 3], "c", max_pause_s=3.0)
        assert not ended.is_set()
        assert watch.is_alive()
    finally:
        ended.set()
        watch.join()


def test_sessions_that_are_ended_as_they_begin_do_not_leave_the_fence_up(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_sessions() -> None:
        ours = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'shardctl%'"
        )
        with fleet_own.connect("a", application_name="killer") as session:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                session.execute(ours)

    mark_drained, killer = journal.mark_drained, threading.Thread(target=end_sessions)

    def late(session: Any, move: str, **named: Any) -> str | None:
        killer.start()
        wait_for(lambda: lost(session))
        return mark_drained(session, move, **named)

    def lost(session: Any) -> bool:
        try:
            session.execute("SELECT 1")
        except psycopg.Error:
            return True
        return False

    monkeypatch.setattr(journal, "mark_drained", late)
    with pytest.raises(ShardctlError):
        fleet_own.move([2, 3], "c", max_pause_s=3.0)
    killer.join()
    assert fleet_own.copy("a").state is MoveState.undone
    fleet_own.put(2)


def test_a_promoted_target_that_is_of_before_the_drain_is_not_opened_up(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_cutover, "take_over", lose)
    fleet_own.stopped([2, 3], "c", max_pause_s=1.5)
    monkeypatch.undo()
    with fleet_own.connect("c") as session:  # as if an older copy of its disk had been promoted
        session.execute("SELECT pg_promote(true)")
        session.execute("SET default_transaction_read_only TO off")
        session.execute("UPDATE shardctl.move SET state = 'fenced', revision = revision - 2")
    with pytest.raises(ShardctlError):
        fleet_own.resume()
    with pytest.raises(psycopg.OperationalError):
        fleet_own.connect("c", user="app").close()
