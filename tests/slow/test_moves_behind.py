"""What comes about on the source between preflight and cutover, and behind the fence."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.access import fence
from shardctl.moves import budget, clone_cutover, undoing
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import Lab, messages

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

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
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, made: str, dropped: str, said: str
) -> None:
    call_off = undoing.call_off

    def late(world: MoveContext) -> None:
        call_off(world)
        with fleet_own.connect("a") as session:
            session.execute(made.encode())

    monkeypatch.setattr(undoing, "call_off", late)
    error = fleet_own.stopped([2, 3], "c")
    assert said in messages(error)
    assert error.state is MoveState.reserved or error.state is MoveState.undone
    assert fleet_own.put(2) > 0
    monkeypatch.undo()
    with fleet_own.connect("a") as session:
        session.execute(dropped.encode())
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.problems() == []


def test_a_view_that_is_made_during_the_cutover_is_told(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_up = fence.put_up

    def late(*given: Any, **named: Any) -> None:
        with fleet_own.connect("a") as session:
            session.execute(VIEW.encode())
        put_up(*given, **named)

    monkeypatch.setattr(fence, "put_up", late)
    fleet_own.move([2, 3], "c")
    (told,) = [notice for notice in fleet_own.notices if "created during the cutover" in notice]
    assert "view public.v" in told


def make_behind(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE SCHEMA IF NOT EXISTS shard2")
        session.execute("CREATE TABLE shard2.mine AS SELECT 7 AS kept")


def behind(fleet_own: Lab, node: str) -> list[str]:
    return sorted(name for name in fleet_own.schemas(node) if "__behind_" in name)


def test_a_schema_that_is_made_behind_the_fence_keeps_nobody_from_claiming(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = fence.drain

    def late(*given: Any, **named: Any) -> None:
        make_behind(fleet_own)
        drain(*given, **named)

    monkeypatch.setattr(fence, "drain", late)
    fleet_own.move([2, 3], "c")
    assert fleet_own.put(2) > 0
    assert fleet_own.leads("shard2") == "c"
    (name,) = behind(fleet_own, "c")
    assert fleet_own.ask("c", f"SELECT kept FROM {name}.mine") == [(7,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_cutover_ends_it_first(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    promote = clone_cutover.take_over

    def signalled(*given: Any, **named: Any) -> None:
        os.kill(os.getpid(), number)
        promote(*given, **named)

    monkeypatch.setattr(clone_cutover, "take_over", signalled)
    before = signal.getsignal(number)
    error = fleet_own.stopped([2, 3], "c")
    assert (error.exit_code, error.state) == (130, MoveState.routed)
    assert signal.getsignal(number) is before
    assert [budget._FIRST in fleet_own.notices] == [number != signal.SIGHUP]
    fleet_own.put(2)
    fleet_own.resume()
    assert fleet_own.problems() == []
