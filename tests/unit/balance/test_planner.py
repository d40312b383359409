"""The planner: what every plan holds to, whatever the fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardctl.balance import planner
from shardctl.balance.fleet import Balance, NodeRoom, ShardLoad
from shardctl.topology import ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Sequence

Fleet = tuple[list[NodeRoom], list[ShardLoad]]

_MB = 1024 * 1024


def fleet(*held: Sequence[int], weights: Sequence[float] = ()) -> Fleet:
    """Give nodes a, b, ... with shards of these sizes in MB, numbered through."""
    names = [NodeName(chr(ord("a") + at)) for at in range(len(held))]
    given = weights or [1.0] * len(held)
    nodes = [NodeRoom(name, weight) for name, weight in zip(names, given, strict=True)]
    sizes = [(name, size) for name, of_node in zip(names, held, strict=True) for size in of_node]
    shards = [
        ShardLoad(ShardId(at), name, float(size * _MB), size * _MB)
        for at, (name, size) in enumerate(sizes)
    ]
    return nodes, shards


def applied(of: Fleet, plan: Balance) -> Fleet:
    """Give the fleet when a plan has been carried out, retired copies included."""
    nodes, shards = of
    went = {shard: move.target for move in plan.moves for shard in move.shards}
    size = {one.shard: one.bytes for one in shards}
    taken = {node.name: 0 for node in nodes}
    for shard, target in went.items():
        taken[target] += size[shard]
    return (
        [
            replace(node, room=None if node.room is None else node.room - taken[node.name])
            for node in nodes
        ],
        [replace(one, node=went.get(one.shard, one.node)) for one in shards],
    )


def held(of: Fleet) -> dict[str, str]:
    return {node.name: ranges.of(s.shard for s in of[1] if s.node == node.name) for node in of[0]}


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    count = draw(st.integers(2, 6))
    names = [NodeName(f"n{at}") for at in range(count)]
    room = st.one_of(st.none(), st.integers(0, 400 * _MB))
    weight = st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 2.0])
    nodes = [NodeRoom(name, draw(weight), draw(room)) for name in names]
    nodes[0] = replace(nodes[0], weight=1.0)
    size = st.one_of(st.integers(0, 20), st.integers(0, 300))
    shards = []
    for shard in range(draw(st.integers(1, 40))):
        mb = draw(size)
        load = float(draw(st.integers(0, 1000))) if draw(st.booleans()) else float(mb * _MB)
        node = draw(st.sampled_from(names))
        shards.append(ShardLoad(ShardId(shard), node, load, mb * _MB))
    return nodes, shards


@settings(max_examples=150, deadline=None)
@given(fleets(), st.sampled_from([0.02, 0.1, 0.3]))
def test_every_plan_is_sound(of: Fleet, threshold: float) -> None:
    nodes, shards = of
    found = planner.plan(nodes, shards, threshold=threshold)
    moved = [shard for move in found.moves for shard in move.shards]
    assert len(moved) == len(set(moved)), "a shard moves once: no move undoes another"
    at = {one.shard: one.node for one in shards}
    size = {one.shard: one.bytes for one in shards}
    weight = {node.name: node.weight for node in nodes}
    for move in found.moves:
        assert move.source != move.target
        assert {at[shard] for shard in move.shards} == {move.source}
        assert move.bytes == sum(size[shard] for shard in move.shards)
        assert weight[move.target] > 0
        at |= dict.fromkeys(move.shards, move.target)
    for node in nodes:
        received = sum(move.bytes for move in found.moves if move.target == node.name)
        assert node.room is None or received <= node.room
    for one in found.nodes:
        assert one.shards[1] == sum(node == one.node for node in at.values())


@settings(max_examples=150, deadline=None)
@given(fleets(), st.sampled_from([0.02, 0.1, 0.3]), st.booleans())
def test_a_plan_that_was_carried_out_leaves_nothing_to_plan(
    of: Fleet, threshold: float, emptying: bool
) -> None:
    found = planner.plan(*of, threshold=threshold, emptying=emptying)
    again = planner.plan(*applied(of, found), threshold=threshold, emptying=emptying)
    assert again.moves == ()


@settings(max_examples=100, deadline=None)
@given(fleets())
def test_a_node_of_weight_0_keeps_only_what_is_named(of: Fleet) -> None:
    found = planner.plan(*of, emptying=True)
    nodes, shards = applied(of, found)
    empty = {node.name for node in nodes if node.weight == 0}
    left = {one.shard for one in shards if one.node in empty}
    assert left == {one.shard for one in found.stuck}
    assert {move.source for move in found.moves} <= empty


@settings(max_examples=100, deadline=None)
@given(fleets(), st.integers(0, 3))
def test_the_most_moves_are_the_first_ones(of: Fleet, most: int) -> None:
    every = planner.plan(*of)
    some = planner.plan(*of, most=most)
    assert some.moves == every.moves[:most]
    assert some.left_out == len(every.moves) - len(some.moves)


def test_a_new_node_gets_the_upper_part_of_each_range() -> None:
    of = fleet([10] * 8, [10] * 8, [])
    found = planner.plan(*of)
    assert held(applied(of, found)) == {"a": "0-4", "b": "8-13", "c": "5-7,14-15"}
    assert {m.target for m in found.moves} == {"c"}
    assert all(len(ranges.of(m.shards).split(",")) == 1 for m in found.moves)


def test_two_nodes_give_half_to_two_new_ones() -> None:
    of = fleet([10] * 32, [10] * 32, [], [])
    found = planner.plan(*of)
    assert held(applied(of, found)) == {"a": "0-15", "b": "32-47", "c": "16-31", "d": "48-63"}
    assert len(found.moves) == 2


def test_nothing_is_planned_within_the_threshold() -> None:
    assert planner.plan(*fleet([10] * 21, [10] * 19)).moves == ()
    assert planner.plan(*fleet([10] * 21, [10] * 19), threshold=0.02).moves != ()


def test_a_shard_larger_than_a_share_gets_a_node_alone_where_it_is() -> None:
    of = fleet([10, 500, 10], [10, 10, 10], [10, 10, 10])
    found = planner.plan(*of)
    assert held(applied(of, found))["a"] == "1"
    assert [one.alone for one in found.nodes] == [1, None, None]
    assert "shard 1's own" in found.moves[0].why


def test_the_second_of_two_large_shards_moves_to_the_emptiest_node() -> None:
    of = fleet([500, 400], [10] * 9, [10])
    after = held(applied(of, planner.plan(*of)))
    assert (after["a"], after["c"]) == ("0", "1")


def test_a_shard_without_room_is_named_and_the_rest_planned() -> None:
    nodes, shards = fleet([900, 10, 10], [10], weights=[0.0, 1.0])
    nodes[1] = replace(nodes[1], room=100 * _MB)
    found = planner.plan(nodes, shards)
    assert [(one.shard, one.node) for one in found.stuck] == [(0, "a")]
    assert "no node has room" in found.stuck[0].why
    assert [m.shards for m in found.moves] == [(1, 2)]


def test_weights_are_shares() -> None:
    of = fleet([10] * 30, [], weights=[1.0, 2.0])
    after = applied(of, planner.plan(*of))
    assert held(after) == {"a": "0-9", "b": "10-29"}


def test_a_fleet_without_load_counts_its_shards() -> None:
    of = fleet([0] * 8, [])
    assert held(applied(of, planner.plan(*of))) == {"a": "0-3", "b": "4-7"}


def test_by_load_the_fewest_bytes_move() -> None:
    nodes, shards = fleet([100, 1, 100, 1], [])
    shards = [replace(one, load=5.0) for one in shards]
    assert [m.shards for m in planner.plan(nodes, shards).moves] == [(1, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_a_zipf_fleet_gets_even_by_few_bytes(seed: int) -> None:
    from tests.bench import rebalance_plan

    found = rebalance_plan.planned(*rebalance_plan.zipf(shards=2048, nodes=16, seed=seed))
    assert found["alone"]
    assert found["fullest"] <= 1.05
    assert found["cost"] <= 1.2
