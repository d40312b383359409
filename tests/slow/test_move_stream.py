"""Streamed moves that stop, and what they carry along, show and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import (
    doctor,
    follow,
    stream_cutover,
)
from shardctl.moves.service import MoveStopped
from shardctl.state import lock
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import on_source, replace_step

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


def test_a_target_that_was_promoted_since_the_copy_is_copied_to_again(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby of the target may lack rows that the source does not send to it again."""
    run = follow.STREAM_STEP.run

    def promoted(context: MoveContext) -> None:
        run(context)
        with fleet_own.connect("b") as session:
            # What the mark of the copy says after a failover: another timeline than the server's.
            session.execute("""UPDATE shardctl.stream SET note = '{"timeline": "00000000"}'
                               WHERE what = 'copied'""")
            session.execute("ALTER TABLE shard2.photos DISABLE TRIGGER ALL")
            session.execute("DELETE FROM shard2.photos")
            session.execute("ALTER TABLE shard2.photos ENABLE TRIGGER ALL")

    row = fleet_own.put(2)
    with monkeypatch.context() as patched:
        replace_step(patched, follow.STREAM_STEP, promoted)
        with pytest.raises(MoveStopped) as caught:
            fleet_own.move([2, 3], "b")
    assert caught.value.error.code == "target_promoted"
    fleet_own.resume()
    assert (row,) in fleet_own.ask("b", "SELECT id FROM shard2.photos")
    assert fleet_own.copy("b").proof == "compared"
    assert left(fleet_own) == []


def test_a_move_is_taken_back_though_its_target_is_destroyed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_cutover, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.move([2, 3], "b")
    monkeypatch.undo()
    fleet_own.server("b").stop(mode="immediate")
    fleet_own.abort(target_destroyed=True)
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.put(2)
    assert on_source(fleet_own) == []
    fleet_own.server("b").start()
    purpose = lock.purpose("moves doctor")
    found = doctor.left(doctor.look(fleet_own.topology, purpose=purpose))
    assert {one.object.kind for one in found} >= {"subscription", "schema", "function", "records"}
    doctor.clear(fleet_own.topology, found, lambda _: None)
    assert left(fleet_own) == []
    assert "shard2" not in fleet_own.schemas("b")
