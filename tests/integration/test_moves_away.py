"""Moves and prune while a node is away that they do not concern, and a process that comes late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.checks.verify import verify
from shardctl.fanout import Silent
from shardctl.moves import cutover, prune, service
from shardctl.moves.attempt import Attempt
from shardctl.moves.service import MoveStopped
from shardctl.provision.refusals import OwnershipDiffers
from shardctl.state import lock
from shardctl.state.journal import MoveState
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.own import Lab


def known(fleet: Lab, node: str) -> list[tuple[object, ...]]:
    """Read a node's map, and its version."""
    query = "SELECT map_version, shard, m.node FROM shardctl.map m, shardctl.cluster ORDER BY 2"
    return fleet.ask(node, query)


def in_turn(fleet: Lab, plan: MovePlan) -> MoveContext:
    """Start a move while another is in its cutover on a node that it does not concern."""
    with fleet.connect("c") as other:
        other.execute("SET application_name = 'another move'")
        assert lock.alone(other, lock.CUTOVER) is None
        waited: list[str] = []

        def notice(message: str) -> None:
            if "waiting for the cutover of another move" in message:
                assert fleet.copy("b").state.undoable
                with fleet.connect("b") as third:  # who has to wait has no turn meanwhile
                    assert lock.held_by(third, lock.CUTOVER) is None
                waited.append(message)
                lock.end_cutover(other)

        context = service.start(fleet.topology, plan, Silent(), notice)
    assert len(waited) == 1
    return context


def test_a_move_and_prune_need_no_node_that_they_do_not_concern(fleet_own: Lab) -> None:
    missed = fleet_own
    missed.server("b").stop()
    missed.move([2, 3], "c")
    assert any(notice.startswith("node b ") for notice in missed.notices)
    assert missed.copy("a").state is missed.copy("c").state is MoveState.done
    found = prune.plan(
        missed.topology,
        service.read(missed.topology),
        accept_unconfirmed=False,
        now=True,
        purpose="test",
    )
    assert [(one.node, one.shard) for one in found] == [("a", 2), ("a", 3), ("c", 0), ("c", 1)]
    assert [one.why_not for one in found] == [None] * 4
    prune.carry_out(missed.topology, found, Silent())

    missed.server("b").start()
    seen = verify(missed.topology, ["map"], deep=False, progress=Silent()).findings
    assert [(one.code, one.severity.name, one.node) for one in seen] == [
        ("map_version", "warning", "b")
    ]
    # It learns of the move by the next one.
    now = missed.file.read_text()
    before = now.replace("shards: 0-1", "shards: 0-3").replace("shards: 2-3", "shards: none")
    missed.file.write_text(before)
    with pytest.raises(OwnershipDiffers):
        missed.plan([4], "a")  # the newest map decides, not the file nor the older map
    missed.file.write_text(now)
    context = in_turn(missed, missed.plan([4], "a"))
    assert known(missed, "a") == known(missed, "b") == known(missed, "c")
    # A process that comes late with the map of an earlier move changes nothing.
    cutover.write_map(context, NodeName("c"), {ShardId(2): NodeName("a")}, 1)
    context.close()
    assert known(missed, "a") == known(missed, "c")
    assert missed.problems() == []


_END = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"


def test_a_process_that_was_overtaken_past_its_decision_changes_nothing(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards are back by then, and what its move had retired is pruned."""
    require, late = Attempt.require_turn, list[str]()

    def files() -> list[str]:
        [pooler] = fleet_own.topology.poolers.values()
        return [fleet_own.file.read_text(), pooler.databases_file.read_text()]

    def suspended(at: Attempt) -> None:
        if not late:
            late.append(at.plan.id)
            for node in ("a", "b"):
                fleet_own.ask(node, _END)
            fleet_own.resume()
            assert fleet_own.copy("b").proof == "forked"  # the snapshot is this process's
            fleet_own.move([2, 3], "a", keep_reverse_s=0.0)
            found = service.read(fleet_own.topology)
            gone = prune.plan(
                fleet_own.topology, found, accept_unconfirmed=True, now=True, purpose="test"
            )
            prune.carry_out(
                fleet_own.topology,
                [one for one in gone if one.move == at.plan.id],
                Silent(),
                accept_unconfirmed=True,
            )
            late.extend(files())
            at.sure_at = 0.0
        require(at)

    monkeypatch.setattr(Attempt, "require_turn", suspended)
    plan = fleet_own.plan([2, 3], "b", keep_reverse_s=0.0)
    with pytest.raises(MoveStopped) as stopped:
        fleet_own.start(plan)
    assert stopped.value.state in (MoveState.done, MoveState.unconfirmed)
    assert files() == late[1:]
    assert fleet_own.schemas("a") >= {"shard2", "shard3"}
    assert fleet_own.leads("shard2") == "a"
    assert fleet_own.put(2)
    assert fleet_own.problems() == []
