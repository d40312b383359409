"""What comes about on the source between preflight and cutover, and behind the fence."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.access import fence, write_fence
from shardctl.moves import handover, interrupts, undoing
from shardctl.moves.gates import Gates
from shardctl.state.journal import MoveState
from tests.fixtures.lab import Lab, messages

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from shardctl.moves.world import World

VIEW = "CREATE VIEW public.v AS SELECT * FROM shard2.photos"


@pytest.mark.parametrize(
    ("made", "dropped", "said"),
    [
        (VIEW, "DROP VIEW public.v", "on view public.v"),
        ("CREATE UNLOGGED TABLE shard2.u ()", "DROP TABLE shard2.u", "shard2.u"),
        ("CREATE TABLE public.photos ()", "DROP TABLE public.photos", "photos"),
    ],
)
def test_what_no_fence_binds_is_looked_for_again_before_the_cutover(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, made: str, dropped: str, said: str
) -> None:
    call_off = undoing.call_off

    def late(world: World) -> None:
        call_off(world)
        with lab.connect("a") as session:
            session.execute(made.encode())

    monkeypatch.setattr(undoing, "call_off", late)
    error = lab.stopped([2, 3], "c")
    assert said in messages(error)
    assert error.state is MoveState.reserved or error.state is MoveState.undone
    assert lab.put(2) > 0
    monkeypatch.undo()
    with lab.connect("a") as session:
        session.execute(dropped.encode())
    lab.resume()
    assert lab.leads("shard2") == "c"
    assert lab.problems() == []


def test_a_view_that_is_made_during_the_cutover_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up = fence.put_up

    def late(*given: Any, **named: Any) -> None:
        with lab.connect("a") as session:
            session.execute(VIEW.encode())
        put_up(*given, **named)

    monkeypatch.setattr(fence, "put_up", late)
    lab.move([2, 3], "c")
    (told,) = [notice for notice in lab.notices if "made during the cutover" in notice]
    assert "view public.v" in told


def make_behind(lab: Lab) -> None:
    with lab.connect("a") as session:
        session.execute("CREATE SCHEMA IF NOT EXISTS shard2")
        session.execute("CREATE TABLE shard2.mine AS SELECT 7 AS kept")


def behind(lab: Lab, node: str) -> list[str]:
    return sorted(name for name in lab.schemas(node) if "__behind_" in name)


def test_a_schema_that_is_made_behind_the_fence_keeps_nobody_from_undoing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        make_behind(lab)
        raise fence.WritersLeft("a", [1])

    monkeypatch.setattr(fence, "drain", busy)
    assert lab.stopped([2, 3], "c").state is MoveState.undone
    assert lab.put(2) > 0
    (name,) = behind(lab, "a")
    assert lab.ask("a", f"SELECT kept FROM {name}.mine") == [(7,)]
    lab.abort()


def test_a_schema_that_is_made_behind_the_fence_keeps_nobody_from_claiming(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = fence.drain

    def late(*given: Any, **named: Any) -> None:
        make_behind(lab)
        drain(*given, **named)

    monkeypatch.setattr(fence, "drain", late)
    lab.move([2, 3], "c")
    assert lab.put(2) > 0
    assert lab.leads("shard2") == "c"
    (name,) = behind(lab, "c")
    assert lab.ask("c", f"SELECT kept FROM {name}.mine") == [(7,)]


def test_a_writer_that_ends_within_the_budget_is_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up = fence.put_up
    writer = lab.connect("a", autocommit=False)

    def write(*given: Any, **named: Any) -> None:
        writer.execute("INSERT INTO shard2.photos (user_id) VALUES (5)")
        threading.Timer(0.4, writer.commit).start()
        put_up(*given, **named)

    monkeypatch.setattr(fence, "put_up", write)
    lab.move([2, 3], "c", max_pause_s=2.0)
    assert lab.ask("c", "SELECT count(*) FROM shard2.photos WHERE user_id = 5") == [(1,)]
    writer.close()


def test_refused_writes_are_waited_for_no_longer_than_the_budget_allows(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up, to_fenced = write_fence.put_up, fence.to_fenced
    waits: list[int] = []

    def soon(*given: Any, **named: Any) -> None:
        put_up(*given, **named | {"deadline": time.monotonic() + 0.33})

    def noting(*given: Any, **named: Any) -> Composed:
        waits.append(named["lock_timeout_ms"])
        return to_fenced(*given, **named)

    monkeypatch.setattr(write_fence, "put_up", soon)
    monkeypatch.setattr(fence, "to_fenced", noting)
    with lab.connect("a", autocommit=False) as writer:
        writer.execute("INSERT INTO shard2.photos (user_id) VALUES (5)")
        error = lab.stopped([2, 3], "c", read_only=True)
        assert "WritersLeft" in messages(error)
    assert 50 < sum(waits) < 330
    monkeypatch.undo()
    lab.resume()
    assert lab.ask("c", "SELECT count(*) FROM shard2.photos WHERE user_id = 5") == [(1,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_cutover_ends_it_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    promote = handover.promote

    def signalled(*given: Any, **named: Any) -> None:
        os.kill(os.getpid(), number)
        promote(*given, **named)

    monkeypatch.setattr(handover, "promote", signalled)
    before = signal.getsignal(number)
    error = lab.stopped([2, 3], "c")
    assert (error.exit_code, error.state) == (130, MoveState.routed)
    assert signal.getsignal(number) is before
    assert [interrupts._FIRST in lab.notices] == [number != signal.SIGHUP]
    lab.put(2)
    lab.resume()
    assert lab.problems() == []


def test_guards_of_another_process_outlive_an_arming_that_fails(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = lab.plan([2, 3], "c")
    ended: list[Any] = []
    monkeypatch.setattr("shardctl.pgbouncer.guard.disarm", ended.append)
    with Gates(lab.topology, lab.topology, plan, purpose="test") as gates:
        for gate in gates.all:
            gates._disarm_own(gate)
    assert ended == []
