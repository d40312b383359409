"""Moves between nodes: there and back, with a node away, a clock behind, a rival, a stale plan."""

from __future__ import annotations

from typing import Any

import pytest

from shardctl.fanout import Silent
from shardctl.moves import attempt, service
from shardctl.moves.context import Use
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres import clone as clones
from shardctl.postgres.connection import NodeLost
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import Lab, messages


def test_resume_serves_the_clients_even_when_the_source_is_gone(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NodeLost("c", "cut")

    monkeypatch.setattr(attempt, "conclude", lost)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.claimed
    monkeypatch.undo()
    source = fleet_own.server("a")
    source.stop(mode="immediate")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.resume()
    assert caught.value.exit_code == 3
    assert "node a" in messages(caught.value)
    assert "without node a" in "".join(fleet_own.notices)
    fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    source.start()
    fleet_own.resume()
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert {fleet_own.copy("a").state, fleet_own.copy("c").state} == {MoveState.unconfirmed}
    assert fleet_own.problems() == []


def test_ids_lie_above_earlier_ones_though_the_targets_clock_is_behind(fleet_own: Lab) -> None:
    first = fleet_own.put(2)
    mark_drained = journal.mark_drained

    def ahead(session: Any, move: str, **named: Any) -> str | None:
        """Let the source's clock have been a minute ahead when it was drained."""
        done = mark_drained(session, move, **named)
        session.execute("UPDATE shardctl.move SET drained_at = drained_at + '1 minute'")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "mark_drained", ahead)
        fleet_own.move([2, 3], "c")
    ((at,),) = fleet_own.ask("c", "SELECT drained_at FROM shardctl.move")
    second, third = fleet_own.put(2), fleet_own.put(2)
    assert first < second < third
    ((above,),) = fleet_own.ask("c", f"SELECT shardctl.id_time({second}) > '{at}'")
    assert above


def test_a_lock_whose_holder_died_without_a_word_is_given_up_by_the_server(fleet_own: Lab) -> None:
    topology = fleet_own.topology
    plan = fleet_own.plan([2, 3], "c")
    world = service.at_work(topology, plan, Silent())
    try:
        world.lock(plan.source)
        session = world.session(plan.source, Use.lock)
        assert session.execute("SHOW tcp_user_timeout").fetchone() == ("60000",)
        assert session.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)
    finally:
        world.close()


def test_a_target_that_cannot_open_up_by_itself_is_opened_before_anybody_is_led_there(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "OPENING_ONCE", "exit 1")
    spans = [name for name, _ in fleet_own.move([2, 3], "c").timeline.spans]
    assert spans.index("claim") < spans.index("open") < spans.index("route")
    assert fleet_own.leads("shard2") == "c"
    fleet_own.put(2)
    assert fleet_own.problems() == []
