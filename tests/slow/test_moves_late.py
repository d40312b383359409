"""Moves in trouble that no kill brings about: late wakers, lost answers, two operators."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.access import fence
from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import (
    clone_cutover,
    paused_poolers,
    service,
    undoing,
)
from shardctl.moves.cutover import NotPromoting
from shardctl.moves.paused_pooler import ResumeFailed
from shardctl.moves.step import NotAbortable
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres.connection import NodeLost
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import (
    Lab,
    end_as_another,
    lose,
    messages,
    prepare_behind_the_fence,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.own import Lab


def test_who_decides_late_does_not_decide_for_the_operator_who_came_after(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = journal.advance

    def late(session: Any, move: str, *given: Any, **named: Any) -> bool:
        if MoveState.promoting in given:
            with fleet_own.connect("a") as other:
                fence.lift(other, move)
                revision = fleet_own.copy("a").revision
                other.execute("INSERT INTO shard2.photos (user_id) VALUES (7)")
                soon = time.monotonic() + 1
                end = fence.not_after(other, soon)
                fence.put_up(other, "a", move, revision=revision, deadline=soon, not_after=end)
                assert journal.mark_drained(other, move, revision=revision + 1)
        return advance(session, move, *given, **named)

    monkeypatch.setattr(journal, "advance", late)
    error = fleet_own.stopped([2, 3], "c")
    assert NotPromoting.__name__ in messages(error)
    assert fleet_own.copy("a").state is MoveState.drained  # the other's
    assert fleet_own.ask("c", "SELECT pg_is_in_recovery()") == [(True,)]
    monkeypatch.undo()
    fleet_own.resume()
    assert fleet_own.ask("c", "SELECT count(*) FROM shard2.photos") == [(2,)]


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_answer_to_the_decision_is_found_out(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    advance = journal.advance

    def lossy(session: Any, move: str, *given: Any, **named: Any) -> bool:
        if MoveState.promoting not in given:
            return advance(session, move, *given, **named)
        if committed:
            advance(session, move, *given, **named)
        session.close()
        raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(journal, "advance", lossy)
    if committed:
        fleet_own.move([2, 3], "c")
        assert fleet_own.leads("shard2") == "c"
    else:
        error = fleet_own.stopped([2, 3], "c")
        assert error.state is MoveState.undone
        assert fleet_own.leads("shard2") == "a"
        assert fleet_own.left() == set()
        fleet_own.put(2)


def test_a_decision_whose_answer_was_lost_and_that_comes_later_comes_too_late(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = journal.advance
    later: list[Callable[[], bool]] = []

    def delayed(session: Any, move: str, *given: Any, **named: Any) -> bool:
        if MoveState.promoting not in given:
            return advance(session, move, *given, **named)
        later.append(lambda: advance(session, move, *given, **named))
        raise psycopg.OperationalError("no answer yet")

    monkeypatch.setattr(journal, "advance", delayed)
    lift = fence.lift

    def then(session: Any, *given: Any, **named: Any) -> None:
        lift(session, *given, **named)
        assert [one() for one in later] in ([False], [])

    monkeypatch.setattr(fence, "lift", then)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.undone
    assert later
    assert fleet_own.leads("shard2") == "a"


def test_abort_deletes_no_clone_when_the_decision_to_promote_was_quicker(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NodeLost("c", "cut")

    monkeypatch.setattr(clone_cutover, "take_over", lost)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.promoting
    entry = fleet_own.entry()
    with pytest.raises(NotAbortable):
        fleet_own.abort()
    seen_before = dataclasses.replace(
        entry, move=dataclasses.replace(entry.move, state=MoveState.drained)
    )
    with pytest.raises(MoveStopped) as caught:
        service.abort(fleet_own.topology, seen_before, Silent(), lambda _: None)
    assert NotAbortable.__name__ in messages(caught.value)
    monkeypatch.undo()
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.ask("c", "SELECT count(*) FROM shard2.photos") == [(1,)]


def test_a_pooler_that_cannot_be_resumed_keeps_its_guard(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ResumeFailed("p1", ["shard2"])

    def no_fence(*_: Any, **__: Any) -> None:
        raise fence.FenceRefused("a", "for this test")

    monkeypatch.setattr(paused_poolers.PausedPoolers, "_resume_as_before", refuse)
    monkeypatch.setattr(undoing, "call_off", lambda _: None)
    monkeypatch.setattr(fence, "put_up", no_fence)
    fleet_own.stopped([2, 3], "c", max_pause_s=1.0)
    monkeypatch.undo()
    assert "guard" in "".join(fleet_own.left())
    fleet_own.put(2)  # waits until the guard has fired
    fleet_own.abort()
    assert fleet_own.left() == set()
    assert not (fleet_own.directory / "nodes" / "c").exists()


def test_a_move_whose_target_was_destroyed_when_it_was_to_take_over_can_be_called_off(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NodeLost("c", "cut")

    monkeypatch.setattr(clone_cutover, "take_over", lost)
    assert fleet_own.stopped([2, 3], "c", max_pause_s=3.0).state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(NotAbortable) as refused:
        fleet_own.abort()
    assert "failures.md" in refused.value.hint
    fleet_own.server("c").stop(mode="immediate")
    with fleet_own.connect("a") as session:  # the steps of docs/operations/failures.md
        page = Path("docs/operations/failures.md").read_text(encoding="utf-8")
        by_hand = page.partition("```sql\n")[2].partition("```")[0]
        session.execute(by_hand.replace("MOVE", fleet_own.copy("a").id).encode())
    fleet_own.abort()
    assert fleet_own.copy("a").state is MoveState.aborted
    fleet_own.put(2)
    assert fleet_own.left() == set()
    assert not (fleet_own.directory / "nodes" / "c").exists()
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert fleet_own.problems() == []


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


@pytest.mark.parametrize(
    "statement",
    ["UPDATE {retired}.photos SET user_id = 1", "CREATE TABLE shard0.more ()"],
)
def test_a_prepared_transaction_that_could_write_to_moved_shards_stops_the_claim(
    fleet_own_prepared: Lab, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    prepare_behind_the_fence(fleet_own_prepared, monkeypatch, statement)
    end_as_another(monkeypatch)
    error = fleet_own_prepared.stopped([2, 3], "c", max_pause_s=3.0)
    assert "prepared_left: node c: prepared transaction 'late' of postgres" in messages(error)
    assert error.exit_code == 3
    monkeypatch.undo()
    for node in "ac":
        with contextlib.closing(fleet_own_prepared.connect(node)) as session:
            session.execute("ROLLBACK PREPARED 'late'")
    fleet_own_prepared.resume()
    fleet_own_prepared.put(2)
    assert fleet_own_prepared.problems() == []


def test_a_view_that_is_committed_during_the_cutover_does_not_write_behind_it(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up = fence.put_up
    with fleet_own.connect("a", autocommit=False) as other:
        other.execute("CREATE VIEW public.bound AS SELECT * FROM shard2.photos")
        error = fleet_own.stopped([2, 3], "c", max_pause_s=2.0)
        assert str(other.info.backend_pid) in messages(error)
        assert error.state is MoveState.undone

        def meanwhile(*given: Any, **named: Any) -> None:
            put_up(*given, **named)
            threading.Timer(0.3, other.commit).start()

        monkeypatch.setattr(fence, "put_up", meanwhile)
        with pytest.raises(MoveStopped) as stopped:
            fleet_own.resume()
        assert "view public.bound" in messages(stopped.value)
        assert stopped.value.state is MoveState.undone
    monkeypatch.undo()
    fleet_own.ask("a", "INSERT INTO public.bound (user_id) VALUES (2) RETURNING id")
    assert fleet_own.ask("a", "SELECT count(*) FROM shard2.photos") == [(2,)]
    with fleet_own.connect("a") as session:
        session.execute("DROP VIEW public.bound")
    fleet_own.resume()
    assert fleet_own.ask("c", "SELECT count(*) FROM shard2.photos") == [(2,)]
    assert fleet_own.problems() == []
