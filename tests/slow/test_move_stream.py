"""Streamed moves that stop, and what they carry along, show and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import (
    cutover,
    doctor,
    marks,
    service,
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
from tests.fixtures.servers.postgres import wait_for

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


def test_a_claimed_move_ends_though_its_source_is_destroyed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "spread_map", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    fleet_own.server("a").stop(mode="immediate")
    fleet_own.resume(source_destroyed=True)
    assert fleet_own.copy("b").state.closed
    assert fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT subname FROM pg_subscription") == []


def fill(lab: Lab, megabytes: int) -> None:
    """Write WAL on node a that belongs to no moved shard."""
    with lab.connect("a") as session:
        session.execute(
            "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, %s)",
            [megabytes * 1000],
        )
        session.execute("DROP TABLE filled")


def progress(lab: Lab) -> dict[str, Any]:
    """Give what `moves show -o json` has of a copy."""
    return lab.entry().copied() or {}


def test_the_lag_of_a_stream_is_shown_until_it_has_caught_up(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = marks.wait_for
    seen: list[dict[str, Any]] = []

    def lag(context: MoveContext, attempt: int, what: str, **how: Any) -> None:
        monkeypatch.setattr(marks, "wait_for", wait)
        name = context.plan.slot
        active = "SELECT active FROM pg_replication_slots"
        with fleet_own.connect("b", autocommit=True) as there:
            # One that is starting, or has not heard of it yet, would receive what is written.
            wait_for(lambda: fleet_own.ask("a", active) == [(True,)])
            there.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
            wait_for(lambda: fleet_own.ask("a", active) == [(False,)])
            fill(fleet_own, 8)
            wait_for(lambda: (progress(fleet_own).get("lag_bytes") or 0) > 8_000_000)
            seen.append(progress(fleet_own))
            there.execute(f"ALTER SUBSCRIPTION {name} ENABLE".encode())
        wait(context, attempt, what, **how)
        wait_for(lambda: progress(fleet_own)["lag_bytes"] < 1_000_000)
        seen.append(progress(fleet_own))

    monkeypatch.setattr(marks, "wait_for", lag)
    fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=64 << 20))
    assert [one["phase"] for one in seen] == ["catching up"] * 2
    assert seen[0]["wal_bytes"] >= seen[0]["lag_bytes"]
    assert service.read(fleet_own.topology).newest().copied() is None
