"""The planner of `rebalance`: what holds of every plan, and how near it comes to the best one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardctl.errors import UsageError
from shardctl.fleet.balance import Balance, Fleet, Place, plan
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.fleets.balance import fleet, least_moved, moved, zipf

A, B, C, D = map(NodeName, "abcd")


def carried_out(before: Fleet, balance: Balance) -> Fleet:
    """Give the fleet behind the moves: each takes shards from where they are, and needs room."""
    owners, nodes = dict(before.owners), dict(before.nodes)
    for step in balance.steps:
        for shard in step.shards:
            assert owners[shard] == step.source
            assert before.owners[shard] == step.source, "a shard moves once"
            owners[shard] = step.target
            room = nodes[step.target].room - before.sizes[shard]
            assert room >= 0
            nodes[step.target] = replace(nodes[step.target], room=room)
    return replace(before, owners=owners, nodes=nodes)


@pytest.mark.parametrize("before", [zipf(), zipf(serving=1)], ids=["shuffled", "all on one node"])
def test_large_shards_are_alone_and_the_other_nodes_have_their_share(before: Fleet) -> None:
    threshold = 0.05
    balance = plan(before, threshold=threshold)
    after = carried_out(before, balance)
    on: dict[NodeName, list[int]] = {node: [] for node in before.nodes}
    for shard, node in after.owners.items():
        on[node].append(before.sizes[shard])
    mean = sum(before.sizes.values()) / 32
    alone = [sizes for sizes in on.values() if max(sizes) > mean]
    rest = [sum(sizes) for sizes in on.values() if max(sizes) <= mean]
    assert [len(sizes) for sizes in alone] == [1, 1, 1]
    assert max(rest) <= (1 + threshold) * sum(rest) / len(rest)
    assert min(rest) >= (1 - threshold) * sum(rest) / len(rest)
    assert moved(before, balance) <= 1.2 * least_moved(before, threshold)
    assert {node: sum(sizes) for node, sizes in on.items()} == balance.after
    assert plan(after, threshold=threshold).steps == ()


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Make up small fleets, with full disks, nodes to empty, and shards of all sizes."""
    nodes = [NodeName(f"n{n}") for n in range(draw(st.integers(1, 6)))]
    room = st.one_of(st.just(math.inf), st.integers(0, 60))
    weight = st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 2.0])
    places = {node: Place(draw(weight), draw(room)) for node in nodes}
    places[nodes[0]] = replace(places[nodes[0]], weight=1.0)
    size = st.one_of(st.integers(0, 3), st.integers(0, 50))
    one = st.tuples(st.sampled_from(nodes), size, size)
    shards = dict(enumerate(draw(st.lists(one, min_size=1, max_size=24))))
    return Fleet(
        {ShardId(n): node for n, (node, _, _) in shards.items()},
        {ShardId(n): load for n, (_, load, _) in shards.items()},
        {ShardId(n): size for n, (_, _, size) in shards.items()},
        places,
    )


@settings(max_examples=100, deadline=None)
@given(before=fleets(), threshold=st.sampled_from([0.0, 0.05, 0.1, 0.5]))
def test_what_holds_of_every_plan(before: Fleet, threshold: float) -> None:
    balance = plan(before, threshold=threshold)
    after = carried_out(before, balance)
    for shard, node in after.owners.items():
        if before.nodes[node].weight == 0:
            assert before.owners[shard] == node
            assert shard in balance.stuck
    assert all(after.owners[shard] == before.owners[shard] for shard in balance.stuck)
    for shard in balance.stuck:
        others = (place.room for node, place in after.nodes.items() if node != after.owners[shard])
        assert min(others, default=0) < before.sizes[shard]
    assert plan(after, threshold=threshold).steps == ()


@settings(max_examples=100, deadline=None)
@given(before=fleets(), threshold=st.sampled_from([0.05, 0.1, 0.5]))
def test_one_move_at_a_time_ends(before: Fleet, threshold: float) -> None:
    """As with --max-moves 1, again and again."""
    now = before
    for _ in range(100):
        balance = plan(now, threshold=threshold, max_moves=1)
        if not balance.steps:
            return
        now = carried_out(now, balance)
    pytest.fail("it does not end")


def test_a_shard_that_no_node_has_room_for_is_named_and_the_rest_is_planned() -> None:
    before = fleet(
        {"a": [30, 10, 10], "b": [], "c": []}, a=Place(0.0), b=Place(room=25), c=Place(room=25)
    )
    balance = plan(before, threshold=0.05)
    assert balance.stuck == (0,)
    assert [(step.target, step.shards) for step in balance.steps] == [(C, (1,)), (B, (2,))]
    assert balance.after == {A: 30, B: 10, C: 10}


def test_two_large_shards_change_places_with_smaller_ones() -> None:
    before = fleet({"a": [9, 9], "b": [6, 6]})
    balance = plan(before, threshold=0.01)
    assert balance.after == {A: 15, B: 15}
    assert moved(before, balance) == 15


def test_weights_are_in_proportion_and_zero_empties() -> None:
    before = fleet({"a": [1] * 30, "b": [1] * 30, "c": [], "d": []}, a=Place(2.0), b=Place(0.0))
    assert plan(before, threshold=0.05).after == {A: 30, B: 0, C: 15, D: 15}
    with pytest.raises(UsageError, match="every node has weight 0"):
        plan(fleet({"a": [1], "b": [1]}, a=Place(0.0), b=Place(0.0)), threshold=0.05)
