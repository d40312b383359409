"""A process that wakes up after its decision, when others have finished its move and gone on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.fanout import Silent
from shardctl.moves import prune, service
from shardctl.moves.attempt import Attempt
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures.moves.stream_moves import planned

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

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
            fleet_own.start(planned(fleet_own, [2, 3], "a", keep_reverse_s=0.0))
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
    plan = planned(fleet_own, [2, 3], "b", keep_reverse_s=0.0)
    with pytest.raises(MoveStopped) as stopped:
        fleet_own.start(plan)
    assert stopped.value.state in (MoveState.done, MoveState.unconfirmed)
    assert files() == late[1:]
    assert fleet_own.schemas("a") >= {"shard2", "shard3"}
    assert fleet_own.leads("shard2") == "a"
    assert fleet_own.put(2)
    assert fleet_own.problems() == []
