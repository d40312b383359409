"""What the check `leftovers` makes of what is left on nodes, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from shardctl.state.journal import MoveState
from shardctl.state.ledger import Copy
from shardctl.state.move_objects import MoveObject
from tests.fixtures.fleets.facts import NOW, A, B, Facts, empty_schema, healthy
from tests.fixtures.fleets.verify import told
from tests.unit.moved import ID, move

OTHER = "0badcafe"
SCHEMAS = move().retired


def record(
    seen: Facts,
    state: MoveState,
    *,
    proof: str | None = "compared",
    holder: str | None = None,
    max_wal_bytes: int | None = None,
) -> None:
    """Let journals have a move of shards 2 and 3 from a to b that ended now."""
    options = {"retain_s": 0, "max_wal_bytes": max_wal_bytes}
    revision = list(MoveState).index(state)
    made = move(state, revision=revision, plan={"options": options}, ended=NOW, proof=proof)
    for node in (A, B):
        seen.basics(node, journal=(Copy(node, made, (), holder),))


def retire(seen: Facts) -> None:
    """Let node a have the retired schemas of that move, looked at when it ended."""
    seen.schemas(A, **dict.fromkeys(SCHEMAS, empty_schema()))


@pytest.mark.parametrize(
    ("state", "given", "retired", "found"),
    [
        (MoveState.reserved, {"holder": "by ann@ops1"}, False, []),
        (MoveState.reserved, {}, False, [("move_unfinished", "warning")]),
        # Between two owners there is no way back.
        (MoveState.claimed, {}, False, [("move_unfinished", "error")]),
        (MoveState.done, {}, True, []),
        (MoveState.unconfirmed, {"proof": None}, True,
         [("move_unconfirmed", "warning")]),
        (MoveState.unconfirmed, {"proof": "differs"}, True, [("copies_differ", "error")]),
    ],
)  # fmt: skip
def test_a_move_and_what_it_retired_are_told_by_its_state(
    state: MoveState, given: dict[str, Any], retired: bool, found: list[tuple[str, str]]
) -> None:
    seen = healthy()
    record(seen, state, **given)
    if retired:
        retire(seen)
    findings = seen.findings()
    assert [(f.code, f.severity.value) for f in findings] == found
    assert {(f.check, f.shards, f.object) for f in findings} <= {("leftovers", (2, 3), ID)}


def test_a_retired_schema_that_no_move_explains_is_the_maps_to_tell() -> None:
    seen = healthy()
    name = f"shard2__retired_{OTHER}"
    seen.schemas(A, **{name: empty_schema()})
    assert told(seen.findings()) == [("map", "retired_schema", "a", (), name)]


@pytest.mark.parametrize(
    ("state", "move", "codes"),
    [
        (MoveState.done, ID, ["left_by_move"]),
        (MoveState.done, OTHER, ["left_by_move"]),
        (MoveState.reserved, ID, ["slot_unwatched"]),
    ],
)
def test_a_slot_is_told_by_whether_its_move_is_open(
    state: MoveState, move: str, codes: list[str]
) -> None:
    seen = healthy()
    record(seen, state, holder="ann@ops1" if state is MoveState.reserved else None)
    slot = MoveObject("slot", f"shardctl_{move}", move, "logical, inactive", 8192)
    seen.see(A, "leftovers", of_moves=(slot,))
    (found,) = seen.findings()
    assert ([found.code], found.node) == (codes, A)
    assert "8,192 bytes of WAL" in found.actual


@pytest.mark.parametrize(("held", "codes"), [(50, []), (51, ["slot_near_limit"])])
def test_a_slot_that_comes_near_its_limit_is_told(held: int, codes: list[str]) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1", max_wal_bytes=100)
    slot = MoveObject("slot", f"shardctl_{ID}", ID, "logical, active", held)
    seen.see(A, "leftovers", of_moves=(slot,), watched=frozenset({slot.name}))
    assert [f.code for f in seen.findings()] == codes
