"""The schedule of a seed."""

from __future__ import annotations

from itertools import islice

from tests.soak.schedule import FAULTS, KEEP_REVERSE, OPERATIONS, REVERSIBLE, STEPS, episodes


def test_a_seed_repeats_the_schedule() -> None:
    first, again, other = (list(islice(episodes(seed), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [one.number for one in first] == list(range(1, 51))


def test_every_operation_comes_within_one_deck() -> None:
    for seed in range(5):
        drawn = [one.operation for one in islice(episodes(seed), sum(OPERATIONS.values()))]
        assert {name: drawn.count(name) for name in drawn} == dict(OPERATIONS)


def test_every_fault_comes_within_an_hour() -> None:
    for seed in range(5):
        drawn = [fault.kind for one in islice(episodes(seed), 120) for fault in one.faults]
        assert set(drawn) == FAULTS.keys()
        assert len(drawn) > 100


def test_faults_of_moves_come_in_their_steps_and_half_of_them_in_the_cutover() -> None:
    found = list(islice(episodes(7), 2000))
    for method, steps in STEPS.items():
        drawn = [f.step for one in found if one.operation == method for f in one.faults]
        assert set(drawn) == {*steps, "cutover", "pause"}
        assert 0.1 < drawn.count("cutover") / len(drawn) < 0.25
        assert 0.25 < drawn.count("pause") / len(drawn) < 0.42
    assert {f.step for one in found if one.operation not in STEPS for f in one.faults} == {""}


def test_moves_that_refuse_writes_are_clones() -> None:
    found = [one for one in islice(episodes(3), 400) if "--read-only" in one.words]
    assert {one.operation for one in found} == {"clone"}


def test_some_streams_can_be_reversed() -> None:
    found = [one for one in islice(episodes(3), 400) if KEEP_REVERSE[0] in one.words]
    assert {one.operation for one in found} == REVERSIBLE
    drawn = sum(one.operation in REVERSIBLE for one in islice(episodes(3), 400))
    assert 0.4 < len(found) / drawn < 0.8


def test_half_of_all_moves_that_are_left_are_left_to_the_guards_first() -> None:
    late = [one.late for one in islice(episodes(3), 400)]
    assert 150 < sum(late) < 250
