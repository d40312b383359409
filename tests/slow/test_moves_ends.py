"""Moves whose end somebody does not live to see: a target, a source, a pooler; others' work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.fanout import Silent
from shardctl.moves import attempt, clone_cutover, stopped
from shardctl.moves.plan import TopologyChanged
from shardctl.postgres import standby
from shardctl.provision import fleet
from shardctl.provision import poolers as provision
from shardctl.provision.job import Retrying
from shardctl.sandbox import poolers
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import Lab, lose

if TYPE_CHECKING:
    from pathlib import Path

ROUTED_S = 15.0
"""How long a guard may take to route."""


def stop_while_cloning(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a move that has made its clone and paused nothing."""
    monkeypatch.setattr(standby, "start", lose)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.reserved
    monkeypatch.undo()


def stop_after_claim(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, shards: list[int]) -> None:
    """Leave a move whose target owns the shards, and nobody else was told so."""
    monkeypatch.setattr(attempt, "conclude", lose)
    assert fleet_own.stopped(shards, "c", max_pause_s=2.0).state is MoveState.claimed
    monkeypatch.undo()


def await_routed(fleet_own: Lab) -> None:
    deadline = time.monotonic() + ROUTED_S
    fleet_own.put(2)  # waits until the guard has fired
    while fleet_own.leads("shard2") != "c":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def without_poolers(fleet_own: Lab) -> None:
    text = fleet_own.file.read_text()
    fleet_own.file.write_text(text[: text.index("poolers:")])


def slots(fleet_own: Lab) -> list[Any]:
    return fleet_own.ask("a", "SELECT slot_name FROM pg_replication_slots")


def burn(fleet_own: Lab, node: str) -> Path:
    """Let a node's machine be no more; give where its disk is."""
    fleet_own.server(node).stop(mode="immediate")
    return (fleet_own.directory / "nodes" / node).rename(fleet_own.directory / f"burnt-{node}")


def test_a_pooler_that_is_gone_does_not_keep_a_move_from_being_called_off(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(fleet_own, monkeypatch)
    poolers.down(fleet_own.topology, Silent(), delete=False)
    notices: list[str] = []
    fleet_own.abort(notice=notices.append)
    assert "p1" in "".join(notices)
    assert "nothing is paused there" in "".join(notices)
    assert fleet_own.copy("a").state is MoveState.aborted
    assert slots(fleet_own) == []
    assert not (fleet_own.directory / "nodes" / "c").exists()
    assert fleet_own.left() == set()


def test_a_pooler_that_was_taken_out_of_the_topology_keeps_no_move_from_its_end(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(fleet_own, monkeypatch)
    whole = fleet_own.file.read_text()
    without_poolers(fleet_own)
    with pytest.raises(TopologyChanged) as caught:
        fleet_own.resume()  # it serves: its clients would be cut off from what is moved
    assert "poolers.p1" in caught.value.message
    fleet_own.file.write_text(whole)
    poolers.down(fleet_own.topology, Silent(), delete=False)
    without_poolers(fleet_own)
    fleet_own.resume()
    assert "pooler p1" in "".join(fleet_own.notices)
    assert fleet_own.ask("c", "SELECT count(*) FROM shard2.photos") == [(1,)]
    assert fleet_own.problems() == []


def unconfirmed(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone_cutover, "hold_snapshot", lambda _: None)
    fleet_own.move([0, 1, 2, 3], "c")
    monkeypatch.undo()
    assert fleet_own.copy("a").state is MoveState.unconfirmed


def test_a_source_that_is_lost_after_the_claim_does_not_keep_the_move_from_its_end(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_claim(fleet_own, monkeypatch, [0, 1, 2, 3])
    with pytest.raises(stopped.SourceThere):
        fleet_own.resume(source_destroyed=True)
    await_routed(fleet_own)
    burn(fleet_own, "a")
    fleet_own.resume(source_destroyed=True)
    move = fleet_own.copy("c")
    assert (move.state, move.proof) == (MoveState.unconfirmed, "forked")
    assert fleet_own.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    assert fleet_own.left() - {"a.log"} == set()
    # a owns nothing any more, and is taken out
    lines = fleet_own.file.read_text().splitlines(keepends=True)
    fleet_own.file.write_text("".join(line for line in lines if not line.startswith("  a: {")))
    topology = fleet_own.topology
    plan = provision.plan(topology, list(topology.poolers.values()), 2, force=False, purpose="test")
    provision.apply(plan, Silent())
    again = fleet.Options(adopt=False, retrying=Retrying(lock_timeout_ms=100, attempts=2))
    fleet.carry_out(fleet.plan_init(topology), again, Silent())
    assert fleet_own.problems() == []
    fleet_own.move([6, 7], "d")
    fleet_own.put(2)
    fleet_own.put(6)


def test_a_move_whose_target_has_not_claimed_needs_its_source(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_cutover, "take_over", lose)
    assert fleet_own.stopped([2, 3], "c", max_pause_s=1.5).state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(stopped.SourceNeeded, match="promoting"):
        fleet_own.resume(source_destroyed=True)
    fleet_own.resume()
    fleet_own.put(2)
