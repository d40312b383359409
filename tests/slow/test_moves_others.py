"""Moves that others get in the way of: who prepares, who does not answer, who was elsewhere."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from shardctl.access import fence
from shardctl.moves import promotion
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import (
    answers,
    end_as_another,
    lose,
    messages,
    prepare_behind_the_fence,
)
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO shard0.photos (user_id) VALUES (1)", "SELECT FROM {retired}.photos FOR SHARE"],
)
def test_a_prepared_transaction_of_others_that_holds_nothing_moved_does_not_stop_the_claim(
    fleet_own_prepared: Lab, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    prepare_behind_the_fence(fleet_own_prepared, monkeypatch, statement)
    end_as_another(monkeypatch)
    fleet_own_prepared.move([2, 3], "c")
    fleet_own_prepared.put(3)
    assert "prepared transaction 'late' of postgres" in "".join(fleet_own_prepared.notices)
    assert fleet_own_prepared.ask("c", "SELECT gid FROM pg_prepared_xacts") == [("late",)]
    for node in "ac":
        with fleet_own_prepared.connect(node) as session:
            session.execute("ROLLBACK PREPARED 'late'")
    fleet_own_prepared.put(2)


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


def await_standbys(fleet_own: Lab, names: str) -> None:
    """Let commits of node a wait for these standbys."""
    with fleet_own.connect("a") as session:
        named = sql.Literal(names)
        session.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(named))
        session.execute("SELECT pg_reload_conf()")


def test_a_resumed_move_waits_for_no_standby_that_does_not_answer(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> list[int]:
        raise fence.FenceRefused("a", "for this test")

    monkeypatch.setattr(fence, "put_up", refuse)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.undone
    monkeypatch.undo()
    await_standbys(fleet_own, "nobody")
    ended = threading.Event()

    def give_up() -> None:
        if not ended.wait(30):
            await_standbys(fleet_own, "")

    watch = threading.Thread(target=give_up)
    watch.start()
    fleet_own.resume()
    in_time = watch.is_alive()
    ended.set()
    watch.join()
    assert in_time
    assert fleet_own.leads("shard2") == "c"


def test_a_clone_that_knows_another_machine_only_lets_in_who_goes_on(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "take_over", lose)
    assert fleet_own.stopped([2, 3], "c", max_pause_s=1.5).state is MoveState.promoting
    monkeypatch.undo()
    rules = fleet_own.directory / "nodes" / "c" / "pg_hba.conf"
    with fleet_own.connect("c") as session:
        rules.write_text(rules.read_text().replace("127.0.0.1/32", "192.0.2.7/32"))
        session.execute("SELECT pg_reload_conf()")
    wait_for(lambda: not answers(fleet_own, "c"))
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "c"
    fleet_own.put(2)
    assert fleet_own.problems() == []
