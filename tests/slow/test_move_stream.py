"""Streamed moves that stop, and what they carry along, show and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import (
    doctor,
    stream_cutover,
)
from shardctl.moves.step import TargetUncleaned
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres.logical import subscription
from shardctl.state import lock
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.stream_moves import left, lose_target, on_source, planned, replace_step

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


def test_sequences_and_ids_go_on_above_all_that_the_source_gave_out(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE SEQUENCE shard2.down INCREMENT -3 MAXVALUE 100")
        session.execute("SELECT nextval('shard2.down') FROM generate_series(1, 5)")
        session.execute("CREATE SEQUENCE shard2.imported")
        session.execute("SELECT setval('shard2.imported', 100000, false)")
        # More than a bigint holds, times the margin of the claim.
        session.execute("CREATE SEQUENCE shard2.wide INCREMENT 1000000000000000000")
        session.execute("SELECT nextval('shard2.wide')")
    last = fleet_own.put(2)
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert fleet_own.put(2) > last
    [(drawn,)] = fleet_own.ask("b", "SELECT nextval('shard2.down')")
    assert drawn < 100 - 4 * 3
    assert fleet_own.ask("b", "SELECT nextval('shard2.imported')") == [(100_000,)]


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
            fleet_own.start(planned(fleet_own, [2, 3], "b"))
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
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    with monkeypatch.context() as patched:  # as when the target dies during the abort
        patched.setattr(subscription, "drop", lambda *_: lose_target())
        with pytest.raises(MoveStopped) as caught:
            fleet_own.abort()
    assert any(isinstance(one, TargetUncleaned) for one in caught.value.parts())
    assert [one for one in left(fleet_own) if one[0] == "a" and one[1].startswith("shard")] == []
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
