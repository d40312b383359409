"""Moves that others get in the way of: who prepares, who does not answer, who was elsewhere."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.access import fence
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import (
    end_as_another,
    messages,
    prepare_behind_the_fence,
)

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


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
    assert "PreparedLeft: node c: prepared transaction 'late' of postgres" in messages(error)
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
