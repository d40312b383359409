"""What fails after a cutover costs no comparison: rows are compared before it is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.fanout import Silent
from shardctl.moves import attempt
from shardctl.sandbox import poolers
from tests.fixtures.moves.own import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.fixtures.moves.own import Lab


def break_before_the_end(monkeypatch: pytest.MonkeyPatch, breaking: Callable[[], object]) -> None:
    """Let something break when the target owns the shards, and only the source knows it, too."""
    conclude = attempt.conclude

    def broken(*given: Any, **named: Any) -> None:
        breaking()
        conclude(*given, **named)

    monkeypatch.setattr(attempt, "conclude", broken)


def require_proved(fleet_own: Lab) -> None:
    for node in ("a", "c"):
        [row] = fleet_own.ask(node, "SELECT state, proof, report->>'rows' FROM shardctl.move")
        assert row == ("done", "compared", "2"), node


def test_a_node_that_stops_during_a_cutover_costs_no_comparison(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_before_the_end(monkeypatch, lambda: fleet_own.server("b").stop(mode="immediate"))
    fleet_own.move([2, 3], "c")
    assert any("node b" in notice for notice in fleet_own.notices), fleet_own.notices
    require_proved(fleet_own)
    fleet_own.server("b").start()
    fleet_own.provision()
    assert fleet_own.problems() == []


def test_a_pooler_that_stops_during_a_cutover_costs_no_comparison(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = fleet_own.topology
    break_before_the_end(monkeypatch, lambda: poolers.down(topology, Silent(), delete=False))
    stopped = fleet_own.stopped([2, 3], "c")
    assert "pooler p1" in messages(stopped)
    monkeypatch.undo()
    poolers.up(topology, Silent())
    fleet_own.resume()
    require_proved(fleet_own)
    assert fleet_own.problems() == []
