"""What nodes that can be read prove while another is away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision.maps import doubted_moves, left_out
from shardctl.provision.observe import Said
from shardctl.state.ledger import Copy
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import local_node, local_topology
from tests.unit.moved import move

A, B, C, D = (NodeName(name) for name in "abcd")
_SHARDS = {"a": range(2), "b": range(2, 4), "c": range(4, 6), "d": range(0)}
_NODES = [local_node(Path("/srv"), name, 5432, shards) for name, shards in _SHARDS.items()]
TOPOLOGY = local_topology(Path("/srv"), *_NODES)
REFUSED = psycopg.OperationalError("Connection refused")
GONE = NodeUnavailable(_NODES[1], REFUSED)


def said(version: int | None = 3, **given: Any) -> Said:
    return replace(Said(version, TOPOLOGY.owners(), ()), **given)


def copy(node: NodeName, source: str, target: str) -> tuple[Copy, ...]:
    return (Copy(node, move(source=source, target=target), (), None),)


def names(there: dict[NodeName, Said], *, strict: bool = False) -> list[str]:
    return [one.node for one in left_out(TOPOLOGY, there, [GONE], strict=strict)]


def refused(there: dict[NodeName, Said], *, strict: bool = False) -> list[str]:
    """Give the codes of what is told beside the node that is away."""
    with pytest.raises(ShardctlError) as caught:
        names(there, strict=strict)
    assert caught.value.exit_code == 1
    away, *others = caught.value.parts()
    assert away.message == GONE.message
    return [one.code for one in others]


def test_nodes_that_agree_go_on_without_the_one_that_is_away() -> None:
    assert names({A: said(), C: said()}) == ["b"]
    assert names({A: said()}) == ["b"]
    assert left_out(TOPOLOGY, {A: said(), B: said(2)}, [], strict=False) == ()


def test_strict_refuses_all() -> None:
    assert refused({A: said(), C: said()}, strict=True) == []


def test_where_no_map_can_be_read_nothing_is_proved() -> None:
    assert refused({}) == []
    assert refused({A: said(0, map={}), C: said(None, map={})}) == []


def test_an_older_map_is_right_about_the_nodes_own_shards_only() -> None:
    owned = {
        node: [s for s, owner in TOPOLOGY.owners().items() if owner == node] for node in (A, B)
    }
    assert names({A: said(), C: said(4)}) == ["b"]
    moved_between_others = TOPOLOGY.owners() | {owned[A][0]: B}
    assert names({A: said(), C: said(2, map=moved_between_others)}) == ["b"]
    assert refused({A: said(), C: said(map=moved_between_others)}) == ["ownership_differs"]
    its_own = TOPOLOGY.owners() | {owned[A][0]: C}
    assert refused({A: said(), C: said(2, map=its_own)}) == ["ownership_differs"]
    half = {shard: owner for shard, owner in TOPOLOGY.owners().items() if owner == C}
    assert refused({A: said(), C: said(0, map=half)}) == ["nodes_do_not_agree"]


@pytest.mark.parametrize(("source", "target"), [("b", "c"), ("c", "b")])
def test_the_other_node_of_an_open_move_is_left_out_too(source: str, target: str) -> None:
    there = {A: said(), C: said(journal=copy(C, source, target))}
    found = left_out(TOPOLOGY, there, [GONE], strict=False)
    assert [one.node for one in found] == ["b", "c"]
    assert f"move 5f3a9c1e ({source} to {target}, started by " in found[1].reason
    assert [one.code for one in doubted_moves(there, [GONE])] == ["move_in_doubt"]


def test_where_no_node_remains_the_move_is_the_reason() -> None:
    other = NodeUnavailable(_NODES[2], REFUSED)
    with pytest.raises(Problems) as caught:
        left_out(TOPOLOGY, {A: said(journal=copy(A, "b", "a"))}, [GONE, other], strict=False)
    assert caught.value.errors[:2] == [GONE, other]
    assert caught.value.exit_code == 1
