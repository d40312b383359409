"""What between two waves counts as a structure of its own."""

from __future__ import annotations

from shardctl.rollout import checks
from shardctl.rollout.counters import Counters
from shardctl.topology.model import NodeName, ShardId

CALM = Counters(1000, 1, 0, 0)


def look(digests: dict[int, str], *, major: str = "15", counters: Counters = CALM) -> checks.Look:
    of = {ShardId(shard): digest for shard, digest in digests.items()}
    return checks.Look(NodeName("a"), major, counters, of)


def test_shards_that_were_alike_must_be_alike() -> None:
    before, after = look({0: "x", 1: "x", 2: "y"}), look({0: "X", 1: "Z", 2: "Y"})
    known, unlike = checks.structures({}, [before], [after])
    assert unlike == [1]
    assert known == {"15": {"x": "X", "y": "Y"}}


def test_a_later_wave_is_compared_with_the_earlier_ones() -> None:
    known = {"15": {"x": "X"}}
    assert checks.structures(known, [look({5: "x"})], [look({5: "Q"})])[1] == [5]
    assert checks.structures(known, [look({5: "x"}, major="16")], [look({5: "Q"}, major="16")]) == (
        {"15": {"x": "X"}, "16": {"x": "Q"}},
        [],
    )


def test_a_wave_that_is_run_again_finds_its_shards_right() -> None:
    known = {"15": {"x": "X"}}
    assert checks.structures(known, [look({0: "X"})], [look({0: "X"})])[1] == []


def test_what_was_right_and_is_not_any_more_is_found_before_the_next_wave() -> None:
    assert checks.strangers({"15": {"x": "X"}}, [look({0: "X", 1: "x"})]) == [1]
    assert checks.strangers({"15": {"x": "X"}}, [look({0: "Q"}, major="16")]) == []


def test_a_jump_names_its_node() -> None:
    wild = look({}, counters=Counters(1100, 201, 3, 7))
    assert list(checks.jumps({"a": CALM}, [wild])) == [
        "node a: 200 of 300 transactions failed (0.1% before)",
        "node a: 3 deadlocks",
        "node a: 7 sessions wait for locks (0 before)",
    ]
    assert list(checks.jumps({}, [wild])) == []


def test_what_is_kept_is_read_again() -> None:
    seen = checks.Seen({"a": CALM}, {"15": {"x": "X"}})
    assert checks.seen(seen.as_json()) == seen
    assert checks.seen({}) == checks.Seen()
