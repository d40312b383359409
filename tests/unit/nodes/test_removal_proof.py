"""What keeps a node in the fleet: facts in, refusals out."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import plan
from shardctl.moves.doctor import Fleet, Seen
from shardctl.moves.ledger import Ledger
from shardctl.moves.prune_drop import Retired
from shardctl.nodes import removal_proof
from shardctl.nodes.removal_proof import Allowed, Facts
from shardctl.state.journal import Move, MoveState
from shardctl.state.ledger import Entry
from shardctl.state.move_objects import MoveObject, NodeObjects
from shardctl.state.reverses import Reverse, State
from tests.fixtures.fleets.facts import NOW
from tests.fixtures.moves.facts import A, B, C, fit
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName

TOPOLOGY = fit().topology
MOVE = "5f3a9c1e"
COPY = Retired(C, f"shard2__retired_{MOVE}", None, MOVE, 1, 0, None)


def entry(
    state: MoveState, source: NodeName, target: NodeName, reverse: State | None = None
) -> Entry:
    made = Move(
        id=MOVE, revision=1, state=state, method=plan.STREAM, source=source, target=target,
        shards=(2, 3), schemas=("shard2",), retired=(COPY.schema,),
        plan={"options": {"retain_s": 0}, "reverse": "0badcafe"}, who="ann@ops1", started=NOW,
        changed=NOW, ended=NOW, drained_at=None, drained_to=None, proof=None, report=None,
    )  # fmt: skip
    kept = Reverse("0badcafe", reverse, NOW + timedelta(hours=1)) if reverse else None
    return Entry(made, (), None, reverse=kept)


def facts(*entries: Entry, retired: tuple[Retired, ...] = (), **seen: Any) -> Facts:
    live = {
        name: frozenset(TOPOLOGY.schema(s) for s in TOPOLOGY.nodes[name].shards)
        for name in (A, B, C)
    }
    there = {
        name: Seen(NodeObjects(), TOPOLOGY.owners(), schemas) for name, schemas in live.items()
    }
    there[C] = dataclasses.replace(there[C], **seen)
    return Facts(Fleet(TOPOLOGY, Ledger(entries, ()), there, {}), retired)


def found(known: Facts, **allowed: bool) -> list[tuple[str, str]]:
    missing = removal_proof.missing(TOPOLOGY, C, known, Allowed(**allowed))
    return [(error.code, error.hint) for error in missing]


def test_a_node_without_anything_may_go() -> None:
    assert found(facts()) == []
    assert found(facts(entry(MoveState.done, A, C), entry(MoveState.aborted, C, B))) == []
    assert found(facts(entry(MoveState.reserved, A, B), entry(MoveState.done, A, B, "open"))) == []


@pytest.mark.parametrize(("source", "target"), [(A, C), (C, A)])
def test_a_move_that_names_it_is_ended_first(source: NodeName, target: NodeName) -> None:
    [(code, hint)] = found(facts(entry(MoveState.reserved, source, target)))
    assert (code, f"moves abort {MOVE}" in hint) == ("move_unfinished", True)
    assert found(facts(entry(MoveState.reserved, source, target)), lost=True) != []


@pytest.mark.parametrize(("source", "target"), [(A, C), (C, A)])
def test_a_reverse_that_names_it_is_given_up_first(source: NodeName, target: NodeName) -> None:
    known = facts(entry(MoveState.done, source, target, "open"))
    [(code, hint)] = found(known)
    assert (code, f"moves finish {MOVE}, or give --finish-reverse" in hint.replace("`", "")) == (
        "reverse_open",
        True,
    )
    assert found(known, finish_reverse=True) == []
    # Of a lost target nothing could be reversed.
    assert bool(found(known, lost=True)) == (source == C)
    assert found(facts(entry(MoveState.done, source, target, "expired"))) == []


def test_retired_copies_are_pruned_first() -> None:
    [(code, hint)] = found(facts(retired=(COPY,)))
    assert (code, "--prune" in hint) == ("node_not_empty", True)
    assert found(facts(retired=(COPY,)), prune=True) == []


def test_copies_that_prune_keeps_are_named_unless_their_reverse_is_given_up() -> None:
    kept = dataclasses.replace(COPY, why_not="move 5f3a9c1e can be reversed")
    known = facts(entry(MoveState.done, C, A, "open"), retired=(kept,))
    assert len(found(known, prune=True)) == 2
    assert found(known, prune=True, finish_reverse=True) == []
    other = facts(retired=(dataclasses.replace(kept, why_not="move 5f3a9c1e is unconfirmed"),))
    assert [code for code, _ in found(other, prune=True, finish_reverse=True)] == ["node_not_empty"]


def test_schemas_of_shards_are_named_as_ranges() -> None:
    known = facts(live=frozenset({"shard1", "shard2", "shard7", "other"}))
    [error] = removal_proof.missing(TOPOLOGY, C, known, Allowed())
    assert "shards 1-2, 7, which other nodes own" in error.message


def test_what_moves_have_left_is_named() -> None:
    slot = MoveObject("slot", "shardctl_deadbeef", "deadbeef")
    [(_, hint)] = found(facts(objects=NodeObjects((slot,))))
    assert "moves doctor" in hint


def test_a_lost_node_is_not_asked() -> None:
    assert found(facts(live=frozenset({"shard1"}), retired=(COPY,)), lost=True) == []


def test_a_node_with_shards_and_the_last_one_stay() -> None:
    with raises_code("node_not_empty", match="it owns shards 0-3"):
        removal_proof.require_owns_nothing(TOPOLOGY, A)
    only = dataclasses.replace(TOPOLOGY, nodes={A: TOPOLOGY.nodes[A]})
    with raises_code("last_node"):
        removal_proof.require_owns_nothing(only, A)
    removal_proof.require_owns_nothing(TOPOLOGY, C)
