"""Moves in trouble that no kill brings about: late wakers, lost answers, two operators, Ctrl-C."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.access import fence
from shardctl.errors import Interrupted
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
from tests.fixtures.moves.own import Lab, messages
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext


def test_a_fence_that_arrives_after_the_guards_have_fired_changes_nothing(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up = fence.put_up

    def late(*given: Any, **named: Any) -> None:
        wait_for(lambda: fleet_own.copy("a").revision > named["revision"])
        put_up(*given, **named)

    monkeypatch.setattr(fence, "put_up", late)
    error = fleet_own.stopped([2, 3], "c", max_pause_s=1.0)
    assert "NotAtCutover" in messages(error)
    assert error.exit_code == 3
    assert error.state is MoveState.undone
    assert {"shard2", "shard3"} <= fleet_own.schemas("a")
    fleet_own.put(2)
    monkeypatch.undo()
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.left() == set()


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


def test_the_target_knows_what_it_must_have_replayed_though_it_was_promoted_before_it_heard(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = journal.advance
    stopped: list[int] = []

    def deaf(session: Any, move: str, *given: Any, **named: Any) -> bool:
        if MoveState.promoting in given:
            stopped.extend(p for (p,) in fleet_own.ask("a", "SELECT pid FROM pg_stat_replication"))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        return advance(session, move, *given, **named)

    claim = clone_cutover.claim

    def again(world: MoveContext, lsn: str) -> bool:
        assert fleet_own.copy("c").state is MoveState.drained
        is_open = claim(world, lsn)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        return is_open

    monkeypatch.setattr(journal, "advance", deaf)
    monkeypatch.setattr(clone_cutover, "claim", again)
    fleet_own.move([2, 3], "c")
    here, there = fleet_own.copy("a"), fleet_own.copy("c")
    assert there.drained_to is not None
    assert (here.drained_to, here.revision) == (there.drained_to, there.revision)


def test_ctrl_c_after_the_decision_waits_until_the_target_serves(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote = clone_cutover.take_over

    def interrupted(*given: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        promote(*given, **named)

    monkeypatch.setattr(clone_cutover, "take_over", interrupted)
    error = fleet_own.stopped([2, 3], "c")
    assert error.exit_code == Interrupted.exit_code
    assert error.state is MoveState.routed
    assert fleet_own.leads("shard2") == "c"
    fleet_own.put(2)
    fleet_own.resume()
    assert fleet_own.copy("c").state is MoveState.unconfirmed  # who held the snapshot has ended


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
