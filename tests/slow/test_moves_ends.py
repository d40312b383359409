"""Moves whose end somebody does not live to see: a target, a source, a pooler; others' work."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.fanout import Silent
from shardctl.moves import destroyed, handover, preflight, service
from shardctl.moves.destroyed import PoolerUnasked, TargetServed
from shardctl.moves.plan import TopologyChanged
from shardctl.moves.preflight_refusals import TargetUnfit
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres import standby
from shardctl.provision import fleet
from shardctl.provision import poolers as provision
from shardctl.provision.chunks import Retrying
from shardctl.sandbox import poolers
from shardctl.state.journal import MoveState
from tests.fixtures.lab import Lab, lose, messages

if TYPE_CHECKING:
    from pathlib import Path

ROUTED_S = 15.0
"""How long a guard may take to route."""


def stop_while_cloning(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a move that has made its clone and paused nothing."""
    monkeypatch.setattr(standby, "start", lose)
    assert lab.stopped([2, 3], "c").state is MoveState.reserved
    monkeypatch.undo()


def stop_after_claim(lab: Lab, monkeypatch: pytest.MonkeyPatch, shards: list[int]) -> None:
    """Leave a move whose target owns the shards, and nobody else was told so."""
    monkeypatch.setattr(handover, "conclude", lose)
    assert lab.stopped(shards, "c", max_pause_s=2.0).state is MoveState.claimed
    monkeypatch.undo()


def await_routed(lab: Lab) -> None:
    deadline = time.monotonic() + ROUTED_S
    lab.put(2)  # waits until the guard has fired
    while lab.leads("shard2") != "c":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def without_poolers(lab: Lab) -> None:
    text = lab.file.read_text()
    lab.file.write_text(text[: text.index("poolers:")])


def slots(lab: Lab) -> list[Any]:
    return lab.ask("a", "SELECT slot_name FROM pg_replication_slots")


def burn(lab: Lab, node: str) -> Path:
    """Let a node's machine be no more; give where its disk is."""
    lab.server(node).stop(mode="immediate")
    return (lab.directory / "nodes" / node).rename(lab.directory / f"burnt-{node}")


def test_a_target_that_has_served_is_not_given_up_by_the_word_that_it_is_destroyed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_claim(lab, monkeypatch, [2, 3])
    await_routed(lab)
    disk = burn(lab, "c")
    assert lab.copy("a").state is MoveState.promoting
    with pytest.raises(TargetServed, match="pooler p1: shard2 leads to node c"):
        lab.abort(target_destroyed=True)
    assert lab.copy("a").state is MoveState.promoting
    disk.rename(lab.directory / "nodes" / "c")
    lab.server("c").start()
    lab.resume()
    assert lab.ask("c", "SELECT count(*) FROM shard2.photos") == [(2,)]
    assert lab.problems() == []


def test_the_file_of_a_pooler_with_aliases_of_nodes_tells_that_the_target_has_served(
    bare_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = bare_lab
    lab.write()
    lab.file.write_text(lab.file.read_text().replace("aliases: [shard, node]", "aliases: [node]"))
    lab.init()
    stop_after_claim(lab, monkeypatch, [2, 3])
    file = lab.directory / "p1" / "pgbouncer.databases.ini"
    deadline = time.monotonic() + ROUTED_S
    while "map version: 2" not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    burn(lab, "c")
    with pytest.raises(TargetServed, match="its file is of map version 2"):
        lab.abort(target_destroyed=True)


def test_writes_to_a_destroyed_target_can_be_given_up_by_taking_its_clients_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_claim(lab, monkeypatch, [2, 3])
    await_routed(lab)
    burn(lab, "c")
    topology = lab.topology
    plan = provision.plan(topology, list(topology.poolers.values()), 1, force=True, purpose="test")
    provision.apply(plan, Silent())
    lab.abort(target_destroyed=True)
    assert lab.copy("a").state is MoveState.aborted
    lab.put(2)


def test_a_pooler_that_cannot_be_asked_keeps_the_target_from_being_given_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "promote", lose)
    assert lab.stopped([2, 3], "c", max_pause_s=1.5).state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(psycopg.errors.UndefinedTable):
        lab.put(2)  # its guard has fired
    lab.server("c").stop(mode="immediate")
    poolers.down(lab.topology, Silent(), delete=False)
    with pytest.raises(PoolerUnasked, match="nobody can tell whether pooler p1"):
        service.require_abortable(lab.topology, lab.entry(), target_destroyed=True)  # a dry run
    with pytest.raises(PoolerUnasked):
        lab.abort(target_destroyed=True)
    assert lab.copy("a").state is MoveState.promoting
    poolers.up(lab.topology, Silent())
    lab.abort(target_destroyed=True)
    lab.put(2)
    assert lab.left() == set()


def test_a_pooler_that_is_gone_does_not_keep_a_move_from_being_called_off(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(lab, monkeypatch)
    poolers.down(lab.topology, Silent(), delete=False)
    notices: list[str] = []
    lab.abort(notice=notices.append)
    assert "p1" in "".join(notices)
    assert "nothing is paused there" in "".join(notices)
    assert lab.copy("a").state is MoveState.aborted
    assert slots(lab) == []
    assert not (lab.directory / "nodes" / "c").exists()
    assert lab.left() == set()


def test_a_pooler_that_hangs_may_have_paused_clients_and_is_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(lab, monkeypatch)
    pid = int((lab.directory / "p1" / "pgbouncer.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(MoveStopped) as caught:
            lab.abort()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert caught.value.exit_code == 3
    assert "pooler p1" in messages(caught.value)
    assert lab.copy("a").state.undoable
    lab.abort()
    assert lab.copy("a").state is MoveState.aborted


def test_a_pooler_that_was_taken_out_of_the_topology_keeps_no_move_from_its_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(lab, monkeypatch)
    whole = lab.file.read_text()
    without_poolers(lab)
    with pytest.raises(TopologyChanged) as caught:
        lab.resume()  # it serves: its clients would be cut off from what is moved
    assert "poolers.p1" in caught.value.message
    lab.file.write_text(whole)
    poolers.down(lab.topology, Silent(), delete=False)
    without_poolers(lab)
    lab.resume()
    assert "pooler p1" in "".join(lab.notices)
    assert lab.ask("c", "SELECT count(*) FROM shard2.photos") == [(1,)]
    assert lab.problems() == []


def test_a_move_can_be_called_off_without_a_pooler_that_serves_and_is_in_no_topology(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_while_cloning(lab, monkeypatch)
    whole = lab.file.read_text()
    without_poolers(lab)
    lab.abort()
    assert lab.copy("a").state is MoveState.aborted
    assert slots(lab) == []
    lab.file.write_text(whole)
    lab.put(2)


def unconfirmed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "hold_snapshot", lambda _: None)
    lab.move([0, 1, 2, 3], "c")
    monkeypatch.undo()
    assert lab.copy("a").state is MoveState.unconfirmed


def test_a_stopped_server_with_the_only_copies_of_an_unconfirmed_move_is_not_moved_aside(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed(lab, monkeypatch)
    lab.server("a").stop()
    plan = lab.plan([0, 1, 2, 3], "a")
    with pytest.raises(TargetUnfit, match="unconfirmed moves") as refused:
        preflight.check(lab.topology, plan, purpose="test")
    assert refused.value.code == "target_has_unproven_copies"
    with pytest.raises(MoveStopped) as caught:
        lab.start(plan)
    assert "unconfirmed moves" in messages(caught.value)
    lab.abort()
    lab.server("a").start()
    assert len(lab.schemas("a")) == 4


def test_a_source_that_is_lost_after_the_claim_does_not_keep_the_move_from_its_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after_claim(lab, monkeypatch, [0, 1, 2, 3])
    with pytest.raises(destroyed.SourceThere):
        lab.resume(source_destroyed=True)
    await_routed(lab)
    burn(lab, "a")
    lab.resume(source_destroyed=True)
    move = lab.copy("c")
    assert (move.state, move.proof) == (MoveState.unconfirmed, "forked")
    assert lab.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    assert lab.left() - {"a.log"} == set()
    # a owns nothing any more, and is taken out
    lines = lab.file.read_text().splitlines(keepends=True)
    lab.file.write_text("".join(line for line in lines if not line.startswith("  a: {")))
    topology = lab.topology
    plan = provision.plan(topology, list(topology.poolers.values()), 2, force=False, purpose="test")
    provision.apply(plan, Silent())
    again = fleet.Options(adopt=False, retrying=Retrying(lock_timeout_ms=100, attempts=2))
    fleet.carry_out(fleet.plan_init(topology), again, Silent())
    assert lab.problems() == []
    lab.move([6, 7], "d")
    lab.put(2)
    lab.put(6)


def test_a_move_whose_target_has_not_claimed_needs_its_source(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "promote", lose)
    assert lab.stopped([2, 3], "c", max_pause_s=1.5).state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(destroyed.SourceNeeded, match="promoting"):
        lab.resume(source_destroyed=True)
    lab.resume()
    lab.put(2)
