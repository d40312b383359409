"""Moves in trouble that no kill brings about."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.moves import clone_cutover
from shardctl.moves.service import MoveStopped
from shardctl.moves.step import NotAbortable
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose, messages

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_move_whose_target_was_destroyed_when_it_was_to_take_over_can_be_called_off(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_cutover, "take_over", lose)
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


def test_a_prepared_transaction_that_could_write_to_moved_shards_stops_the_claim(
    fleet_own_bare: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_own_bare.begin(max_prepared_transactions="4")
    mark_drained, end = journal.mark_drained, clone_cutover._end_prepared

    def late(session: Any, move: str, **named: Any) -> str | None:
        """Let somebody prepare a transaction after the drain."""
        write = f"UPDATE shard2__retired_{move}.photos SET user_id = 1"
        fleet_own_bare.ask("a", f"BEGIN; {write}; PREPARE TRANSACTION 'late'")
        return mark_drained(session, move, **named)

    def as_another(world: Any, session: Any, *given: Any) -> None:
        """Let the mover be somebody who may not end prepared transactions."""
        session.execute("SET ROLE app")
        try:
            end(world, session, *given)
        finally:
            session.execute("RESET ROLE")

    monkeypatch.setattr(journal, "mark_drained", late)
    monkeypatch.setattr(clone_cutover, "_end_prepared", as_another)
    foreign = clone_cutover.QUERIES["foreign"]
    of_app = sql.SQL(foreign.as_string().replace("current_user", "'app'"))
    monkeypatch.setitem(clone_cutover.QUERIES, "foreign", of_app)
    error = fleet_own_bare.stopped([2, 3], "c", max_pause_s=3.0)
    assert "SourceUnfit: node a: it has prepared transactions: 'late'" in messages(error)
    assert error.state is MoveState.undone
    fleet_own_bare.ask("a", "ROLLBACK PREPARED 'late'")
    fleet_own_bare.put(2)
    monkeypatch.setitem(clone_cutover.QUERIES, "foreign", foreign)  # it comes a moment later
    with pytest.raises(MoveStopped) as caught:
        fleet_own_bare.resume()
    error = caught.value
    assert "prepared_left: node c: only postgres or a superuser may end prepared" in messages(error)
    assert error.exit_code == 3
    monkeypatch.undo()
    for node in "ac":
        with contextlib.closing(fleet_own_bare.connect(node)) as session:
            session.execute("ROLLBACK PREPARED 'late'")
    fleet_own_bare.resume()
    fleet_own_bare.put(2)
    assert fleet_own_bare.problems() == []
