"""What comes about between a move's preflight and its end, on its source and of its poolers."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from shardctl.fanout import Silent
from shardctl.moves import attempt, clone_cutover, sub_step
from shardctl.provision import fleet
from shardctl.provision import poolers as provision
from shardctl.provision.plan import Options
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import Lab, lose, messages
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def stop_after_claim(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, shards: list[int]) -> None:
    """Leave a move whose target owns the shards, and nobody else was told so."""
    monkeypatch.setattr(attempt, "conclude", lose)
    assert fleet_own.stopped(shards, "c", max_pause_s=2.0).state is MoveState.claimed
    monkeypatch.undo()


def await_routed(fleet_own: Lab) -> None:
    fleet_own.put(2)  # waits until the guard has fired
    wait_for(lambda: fleet_own.leads("shard2") == "c")


def burn(fleet_own: Lab, node: str) -> Path:
    """Let a node's machine be no more; give where its disk is."""
    fleet_own.server(node).stop(mode="immediate")
    return (fleet_own.directory / "nodes" / node).rename(fleet_own.directory / f"burnt-{node}")


def test_a_source_that_is_lost_after_the_claim_does_not_keep_the_move_from_its_end(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_claim(fleet_own, monkeypatch, [0, 1, 2, 3])
    with raises_code("node_there"):
        fleet_own.resume(source_destroyed=True)
    await_routed(fleet_own)
    burn(fleet_own, "a")
    fleet_own.resume(source_destroyed=True)
    move = fleet_own.copy("c")
    assert (move.state, move.proof) == (MoveState.unconfirmed, "forked")
    assert fleet_own.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    # a owns nothing any more, and is taken out
    lines = fleet_own.file.read_text().splitlines(keepends=True)
    fleet_own.file.write_text("".join(line for line in lines if not line.startswith("  a: {")))
    topology = fleet_own.topology
    plan = provision.plan(topology, list(topology.poolers.values()), 2, force=False, purpose="test")
    provision.apply(plan, Silent())
    again = Options(lock_timeout_ms=100, attempts=2)
    fleet.carry_out(fleet.plan_init(topology), again, Silent())
    assert fleet_own.problems() == []
    fleet_own.put(2)


def test_a_move_whose_target_has_not_claimed_needs_its_source(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_cutover, "take_over", lose)
    assert fleet_own.stopped([2, 3], "c", max_pause_s=1.5).state is MoveState.promoting
    monkeypatch.undo()
    with raises_code("source_needed"):
        fleet_own.resume(source_destroyed=True)
    fleet_own.resume()
    fleet_own.put(2)


def test_a_signal_during_a_cutover_ends_it_first(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote = clone_cutover.take_over

    def signalled(*given: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        promote(*given, **named)

    monkeypatch.setattr(clone_cutover, "take_over", signalled)
    error = fleet_own.stopped([2, 3], "c")
    assert (error.exit_code, error.state) == (130, MoveState.routed)
    assert sub_step.DEFERRED in fleet_own.notices
    fleet_own.put(2)
    fleet_own.resume()
    assert fleet_own.problems() == []


def enable(fleet_own: Lab) -> None:
    """Let a subscription run on node a; its publisher is away."""
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE SUBSCRIPTION late CONNECTION 'host=127.0.0.1 port=1 dbname=x'"
            " PUBLICATION p WITH (connect = false, slot_name = 'late')"
        )
        session.execute("ALTER SUBSCRIPTION late ENABLE")


def test_a_subscription_that_is_enabled_during_the_cutover_ends_it_before_the_promotion(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_drained = journal.mark_drained

    def late(*given: Any, **named: Any) -> str | None:
        enable(fleet_own)
        return mark_drained(*given, **named)

    monkeypatch.setattr(journal, "mark_drained", late)
    error = fleet_own.stopped([2, 3], "c")
    monkeypatch.undo()
    assert (
        "subscriptions_enabled: node a: subscriptions were enabled during the move: late"
        in messages(error)
    )
    assert error.state is MoveState.undone
    fleet_own.put(2)
    assert fleet_own.ask("c", "SELECT pg_is_in_recovery()") == [(True,)]
