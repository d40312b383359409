"""Histories that are wrong in one way each, which the checker has to find, and right ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.checker import RULES, check
from tests.soak.history import Attempt, Copy, Era, History, Left, Op, Outage, Pause, Row

A, B, C = "a", "b", "c"
SHARD, OTHER = 2, 5
FENCE_S = 10.0
"""When the shard moved from a to b, in the histories of these tests."""

MISSING = "acknowledged write missing"
TWICE = "row twice"
ELSEWHERE = "acknowledged by another than the owner"
RETIRED = "retired copy newer than its fence"
VANISHED = "row went away from a reader"
IDS = "id given twice"
PAUSED = "paused longer than the guard"
UNFINISHED = "move not ended by one command"
LEFT = "left behind"
WRONG = "command ended wrongly"


def written(token: int, at: float, node: str = A, **changed: object) -> Op:
    """Give an insert that took 0.1 s."""
    made = Op("one", "write", SHARD, at, at + 0.1, "acknowledged", token=token, id=1000 + token)
    return replace(made, node=node, **changed)  # type: ignore[arg-type]


def changed(token: int, at: float, version: int, **given: object) -> Op:
    return written(token, at, **{"kind": "change", "id": 0, "version": version} | given)  # type: ignore[arg-type]


def read(at: float, asked: tuple[int, ...], *seen: tuple[int, int], node: str = "") -> Op:
    made = Op("two", "read", SHARD, at, at + 0.1, "acknowledged", asked=asked, seen=seen)
    return replace(made, node=node)


def row(token: int, node: str = A, version: int = 0, number: int | None = None) -> Row:
    return Row(token, 1000 + token if number is None else number, version, node)


def history() -> History:
    """Give a history without a flaw: a shard moves from a to b at 10 s, beside clients."""
    return History(
        ops=[
            written(1, 1),
            written(2, 9, outcome="unknown", node="", id=0),
            written(3, 9.95),  # its answer comes after the fence
            written(4, 10.1, B),
            written(5, 11, B, outcome="refused", id=0, code="42P01"),
            written(6, 12, "", outcome="unknown", id=0),  # was never executed
            changed(1, 2, 1),
            changed(1, 11, 2, node=B),
            changed(1, 12, 3, node="", outcome="unknown"),
            read(3, (1, 4), (1, 1), node=A),
            read(12, (1, 3, 4, 6), (1, 2), (3, 0), (4, 0), node=B),
            replace(written(7, 1, A), shard=OTHER),
            replace(written(0, 5), kind="other", id=0),
        ],
        eras=[
            Era(SHARD, A),
            Era(SHARD, B, after=9.0, before=10.3),
            Era(OTHER, A),
        ],
        copies=[
            Copy(B, SHARD, "shard2", (row(1, A, 3), row(2), row(3), row(4, B))),
            Copy(A, SHARD, "shard2__retired_1", (row(1, A, 1), row(2), row(3)), FENCE_S),
            Copy(A, OTHER, "shard5", (row(7),)),
        ],
        maps={A: {SHARD: B, OTHER: A}, B: {SHARD: B, OTHER: A}},
        pauses=[Pause("p1", "shard2", 9.9, 10.2)],
        pause_limit_s=7.0,
        attempts=[Attempt("1", "resume", 20, 0, over=True)],
    )


def live(made: History, *rows: Row) -> None:
    """Let the shard's owner have these rows."""
    made.copies[0] = replace(made.copies[0], rows=rows)


def assert_found(made: History, rule: str, *words: str) -> None:
    found = check(made)
    assert {one.rule for one in found} == {rule}, found
    assert all(any(word in one.text for one in found) for word in words), found


def test_a_right_history_passes() -> None:
    assert check(history()) == []


def test_every_rule_is_tested() -> None:
    rules = {MISSING, TWICE, ELSEWHERE, RETIRED, VANISHED, IDS, PAUSED, UNFINISHED, LEFT, WRONG}
    assert rules == RULES.keys()


def test_an_acknowledged_row_that_is_missing_is_found() -> None:
    made = history()
    live(made, row(1, A, 3), row(2), row(3))
    assert_found(made, MISSING, "row 4 is missing on node b")


def test_an_acknowledged_change_that_is_missing_is_found() -> None:
    made = history()
    live(made, row(1, A, 1), row(2), row(3), row(4, B))
    assert_found(made, MISSING, "row 1 has version 1, acknowledged 2")


def test_a_shard_that_its_owner_lacks_is_found() -> None:
    made = history()
    made.copies = [copy for copy in made.copies if copy.shard != OTHER]
    assert_found(made, MISSING, "shard 5 is not live on its owner a")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("there", [True, False])
def test_what_is_unknown_may_be_there_or_not(version: int, there: bool) -> None:
    made = history()
    live(made, row(1, A, version), *([row(6, B)] if there else []), row(2), row(3), row(4, B))
    assert check(made) == []


@pytest.mark.parametrize("node", [A, B])
def test_a_row_that_is_there_twice_is_found(node: str) -> None:
    made = history()
    live(made, row(1, A, 3), row(2), row(2, node, number=7), row(3), row(4, B))
    assert_found(made, TWICE, "row 2 is in shard2 on node b and in shard2 on node b")


def test_a_row_of_unknown_outcome_in_two_shards_is_found() -> None:
    made = history()
    made.copies[2] = replace(made.copies[2], rows=(row(7), row(2)))
    assert_found(made, TWICE, "row 2")


def test_a_row_in_another_shard_is_found() -> None:
    made = history()
    made.copies[2] = replace(made.copies[2], rows=(row(7), row(6)))
    assert_found(made, TWICE, "row 6 in shard5 on node a is of shard 2")


@pytest.mark.parametrize(
    ("strange", "told"),
    [
        (row(5, B), "was refused: 42P01"),
        (row(99, B), "was never written"),
        (row(4, B, number=1), "has id 1, acknowledged 1004"),
        (row(4, B, version=1), "version 1, which was never sent"),
    ],
)
def test_a_row_that_is_other_than_sent_is_found(strange: Row, told: str) -> None:
    made = history()
    rest = {4: row(4, B)} | {strange.token: strange}
    live(made, row(1, A, 3), row(2), row(3), *rest.values())
    assert_found(made, TWICE, told)


def test_a_write_that_the_earlier_owner_acknowledged_later_is_found() -> None:
    made = history()
    made.ops.append(written(8, 14, A))
    live(made, *made.copies[0].rows, row(8))
    assert_found(made, ELSEWHERE, "node a acknowledged row 8 and was not owner")


def test_a_write_on_a_node_that_never_owned_the_shard_is_found() -> None:
    made = history()
    made.ops.append(written(8, 14, C))
    live(made, *made.copies[0].rows, row(8, C))
    assert_found(made, ELSEWHERE, "node c acknowledged row 8 and was not owner")


def test_a_write_on_the_later_owner_before_its_era_is_found() -> None:
    made = history()
    made.ops.append(written(8, 8, B))
    live(made, *made.copies[0].rows, row(8, B))
    assert_found(made, ELSEWHERE, "node b acknowledged row 8 and was not owner")


def test_writes_that_two_nodes_acknowledged_within_the_bounds_are_found_by_their_order() -> None:
    made = history()
    made.ops.append(written(8, 10.25, A))  # sent after b had acknowledged row 4
    live(made, *made.copies[0].rows, row(8))
    assert_found(made, ELSEWHERE, "node a acknowledged row 8, sent after node b had acknowledged")


def test_a_change_that_two_nodes_acknowledged_is_found_likewise() -> None:
    made = history()
    made.ops.append(changed(2, 10.25, 1, node=A))
    live(made, row(1, A, 3), row(2, A, 1), row(3), row(4, B))
    assert_found(made, ELSEWHERE, "sent after node b had acknowledged row 4")


def test_a_row_of_unknown_outcome_that_no_owner_executed_is_found() -> None:
    made = history()
    live(made, *made.copies[0].rows, row(6, C))
    assert_found(made, ELSEWHERE, "node c executed row 6")


def test_a_row_of_unknown_outcome_that_was_sent_behind_the_era_of_its_node_is_found() -> None:
    made = history()
    live(made, *made.copies[0].rows, row(6, A))
    assert_found(made, ELSEWHERE, "node a executed row 6")


def test_a_second_live_copy_is_found() -> None:
    made = history()
    made.copies.append(Copy(C, SHARD, "shard2", ()))
    assert_found(made, ELSEWHERE, "shard 2 is live on node c, its owner is b")


def test_a_shard_that_came_back_may_be_written_there_again() -> None:
    made = history()
    made.eras.insert(2, Era(SHARD, A, after=20.0, before=20.3))
    made.ops.append(written(8, 21, A))
    made.ops.append(written(9, 20.25, B, outcome="unknown", id=0))
    rows = (*made.copies[0].rows, row(9, B))
    made.copies[:2] = [
        Copy(A, SHARD, "shard2", (*rows, row(8))),
        Copy(B, SHARD, "shard2__retired_2", rows, 20.3),
    ]
    made.maps = {node: {SHARD: A, OTHER: A} for node in (A, B)}
    assert check(made) == []
    made.ops.append(written(10, 21.5, B))
    made.copies[0] = Copy(A, SHARD, "shard2", (*rows, row(8), row(10, B)))
    assert_found(made, ELSEWHERE, "node b acknowledged row 10 and was not owner")


def test_a_retired_copy_with_a_row_that_its_owner_lacks_is_found() -> None:
    made = history()
    made.copies[1] = replace(made.copies[1], rows=(row(1, A, 1), row(6)))
    assert_found(made, RETIRED, "shard2__retired_1 on node a has row 6, version 0, which")


def test_a_retired_copy_with_a_newer_version_is_found() -> None:
    made = history()
    made.copies[1] = replace(made.copies[1], rows=(row(1, A, 4),))
    assert_found(made, RETIRED, "row 1, version 4")


def test_a_retired_copy_with_a_row_that_was_sent_behind_the_fence_is_found() -> None:
    made = history()
    made.copies[1] = replace(made.copies[1], rows=(row(4),))
    assert_found(made, RETIRED, "row 4, which was sent behind its fence")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (read(13, (1,), node=B), "two read nothing of row 1 on node b, version 2"),
        (read(13, (1,), (1, 1), node=B), "two read version 1 of row 1 on node b, version 2"),
        (read(13, (1,), (1, 1), node=A), "two read version 1 of row 1 on node a"),
    ],
)
def test_a_row_that_went_away_from_a_reader_is_found(asked: Op, told: str) -> None:
    made = history()
    made.ops.append(asked)
    assert_found(made, VANISHED, told)


def test_a_row_of_unknown_outcome_that_was_read_may_not_go_away() -> None:
    made = history()
    made.ops += [read(13, (2,), (2, 0)), read(14, (2,))]
    assert_found(made, VANISHED, "row 2")


def test_a_read_that_began_before_the_answer_may_miss_it() -> None:
    made = history()
    made.ops.append(replace(read(1.05, (1,)), end=5))
    assert check(made) == []


def test_the_earlier_owner_may_be_read_for_a_while_if_only_writes_were_refused() -> None:
    made = history()
    made.eras[1] = replace(made.eras[1], stale_until=13.0)
    made.ops += [read(12.5, (1, 4), (1, 1), node=A), read(12.5, (1, 4), (1, 1))]
    assert check(made) == []
    made.ops.append(read(13.5, (1, 4), (1, 1), node=A))
    assert_found(made, VANISHED, "row 4", "row 1")


def test_an_id_of_two_rows_is_found() -> None:
    made = history()
    live(made, row(1, A, 3), row(2, number=1007), row(3), row(4, B))
    assert_found(made, IDS, "id 1007")


def test_an_id_that_was_given_out_twice_is_found() -> None:
    made = history()
    made.ops[5] = written(6, 12, B, id=1001)
    made.copies[0] = replace(made.copies[0], rows=(*made.copies[0].rows, row(6, B, number=1001)))
    assert_found(made, IDS, "id 1001 was given to rows 1 and 6", "id 1001: row 1 of shard2")


def test_an_id_that_a_row_of_unknown_outcome_has_too_is_found() -> None:
    made = history()
    live(made, row(1, A, 3), row(2, number=1007), row(3), row(4, B))
    made.copies[2] = replace(made.copies[2], rows=(row(7),))
    assert_found(made, IDS, "id 1007")


def test_a_pause_that_outlasts_the_guard_is_found() -> None:
    made = history()
    made.pauses.append(Pause("p2", "shard3", 30, 37.5))
    assert_found(made, PAUSED, "pooler p2: shard3 was paused for 7.5 s")


@pytest.mark.parametrize(("what", "excused"), [("pooler", True), ("guard", True), ("node", False)])
def test_a_pause_is_excused_while_the_pooler_or_its_guard_cannot_work(
    what: str, excused: bool
) -> None:
    made = history()
    made.pauses.append(Pause("p2", "shard3", 30, 40))
    made.outages.append(Outage(what, "p2", 31, 35))  # type: ignore[arg-type]
    assert (check(made) == []) is excused
    made.outages = [Outage("pooler", "p1", 31, 35)]
    assert_found(made, PAUSED)


def test_a_move_that_no_command_has_ended_is_found() -> None:
    made = history()
    made.open_moves = frozenset({"9"})
    assert_found(made, UNFINISHED, "move 9 is not over; tried: nothing")
    made.attempts += [Attempt("9", "resume", 30, 3, over=False)]
    assert_found(made, UNFINISHED, "move 9 is not over; tried: resume (3)")


def test_a_move_that_took_two_of_the_same_command_is_found() -> None:
    made = history()
    made.attempts += [Attempt("9", "resume", 30, 3, False), Attempt("9", "resume", 31, 0, True)]
    assert_found(made, UNFINISHED, "move 9 was over only after: resume (3), resume (0)")


def test_a_move_that_could_only_be_aborted_is_right() -> None:
    made = history()
    made.attempts += [Attempt("9", "abort", 31, 0, True), Attempt("9", "resume", 30, 3, False)]
    assert check(made) == []


def test_what_is_left_is_found_unless_an_open_move_owns_it() -> None:
    made = history()
    made.left.append(Left("slot", "shardctl_9", "node a", "9"))
    assert_found(made, LEFT, "node a: slot shardctl_9 is left")
    made.left.append(Left("process", "sh guard", "pooler p1"))
    assert_found(made, LEFT, "pooler p1: process sh guard is left")
    made.open_moves = frozenset({"9"})
    made.attempts.append(Attempt("9", "abort", 31, 0, True))
    del made.left[1]
    assert check(made) == []


@pytest.mark.parametrize("owned", [{SHARD: A, OTHER: A}, {SHARD: B}])
def test_a_map_that_contradicts_the_eras_is_found(owned: dict[int, str]) -> None:
    made = history()
    made.maps[C] = owned
    assert_found(made, LEFT, "the map of node c gives shard")


def test_a_command_that_ended_wrongly_is_found() -> None:
    made = history()
    made.wrong.append("verify: 70")
    assert_found(made, WRONG, "verify: 70")
