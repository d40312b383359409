"""What the check `leftovers` makes of what is left on nodes, without a server."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks.retired import Retired
from shardctl.checks.status_look import Slot
from shardctl.state.journal import Move, MoveState
from shardctl.state.ledger import Copy
from shardctl.state.move_objects import MoveObject, Stream
from tests.fixtures.fleets.facts import NOW, A, B, Facts, empty_schema, healthy
from tests.fixtures.fleets.verify import told

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName

ID, OTHER = "5f3a9c1e", "0badcafe"
SCHEMAS = (f"shard2__retired_{ID}", f"shard3__retired_{ID}")


def record(
    seen: Facts,
    state: MoveState,
    *nodes: NodeName,
    proof: str | None = "compared",
    retain_s: float = 0,
    holder: str | None = None,
    max_wal_bytes: int | None = None,
    method: str = "clone",
) -> None:
    """Let journals have a move of shards 2 and 3 from a to b that ended now."""
    move = Move(
        id=ID, revision=list(MoveState).index(state), state=state, method=method, source="a",
        target="b", shards=(2, 3), schemas=("shard2", "shard3"), retired=SCHEMAS,
        plan={"options": {"retain_s": retain_s, "max_wal_bytes": max_wal_bytes}},
        who="ann@ops1", started=NOW, changed=NOW,
        ended=NOW, drained_at=None, drained_to=None, proof=proof, report=None,
    )  # fmt: skip
    for node in nodes or (A, B):
        seen.basics(node, journal=(Copy(node, move, (), holder),))


def retire(seen: Facts, *, after: timedelta = timedelta(0), size: int | None = 8192) -> None:
    """Let node a have the retired schemas of that move, looked at some time after its end."""
    kept = tuple(Retired(name, size, NOW + after) for name in SCHEMAS)
    seen.see(A, "leftovers", retired=kept)
    seen.schemas(A, **dict.fromkeys(SCHEMAS, empty_schema()))


@pytest.mark.parametrize(
    ("state", "given", "retired", "found"),
    [
        (MoveState.reserved, {"holder": "by ann@ops1"}, False, [("move_running", "note")]),
        (MoveState.reserved, {}, False, [("move_unfinished", "warning")]),
        # Between two owners there is no way back.
        (MoveState.promoting, {}, False, [("move_unfinished", "error")]),
        (MoveState.claimed, {}, False, [("move_unfinished", "error")]),
        (MoveState.done, {"retain_s": 3600}, True, [("retired_kept", "note")]),
        (MoveState.done, {}, True, [("retired_due", "note")]),
        (MoveState.unconfirmed, {"proof": None}, False, []),
        (MoveState.unconfirmed, {"proof": None}, True,
         [("move_unconfirmed", "warning"), ("retired_due", "note")]),
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
    assert {f.node for f in findings if f.code.startswith("retired")} <= {"a"}


def test_what_is_kept_is_due_when_its_time_has_passed() -> None:
    seen = healthy()
    record(seen, MoveState.done, retain_s=3600)
    retire(seen, after=timedelta(hours=1, seconds=1), size=None)
    assert told(seen.findings()) == [("leftovers", "retired_due", "a", (2, 3), ID)]


def test_a_retired_schema_that_no_move_explains_is_the_maps_to_tell() -> None:
    seen = healthy()
    name = f"shard2__retired_{OTHER}"
    seen.schemas(A, **{name: empty_schema()})
    seen.put(A, "map", {name: 8192})
    assert told(seen.findings()) == [("map", "retired_schema", "a", (), name)]


@pytest.mark.parametrize(("held", "codes"), [(50, set()), (51, {"slot_near_limit"})])
def test_a_slot_that_comes_near_its_limit_is_told(held: int, codes: set[str]) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1", max_wal_bytes=100)
    slot = Slot(f"shardctl_{ID}", "logical", active=True, wal_status=None, retained_bytes=held)
    seen.see(A, "leftovers", slots=(slot,), watched=frozenset({slot.name}))
    assert {f.code for f in seen.findings()} - {"move_running"} == codes


def streams(seen: Facts, **changes: object) -> set[str]:
    """Let a stream of that move be so, on source and target; give what is told, by the codes."""
    slot: dict[str, object] = {"works": True, "status": "reserved", "lag_bytes": 16, "errors": 0}
    subscription: dict[str, object] = {**slot, "status": "enabled", "lag_bytes": None}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        {"slot": slot, "subscription": subscription}[part][field] = value
    name = f"shardctl_{ID}"
    seen.see(A, "leftovers", streams=(Stream("slot", name, **slot),))  # type: ignore[arg-type]
    seen.see(B, "leftovers", streams=(Stream("subscription", name, **subscription),))  # type: ignore[arg-type]
    return {f.code for f in seen.findings() if f.code.startswith("stream")}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"slot_works": False, "subscription_status": "disabled"}, None),  # nobody reads it yet
        ({"slot_status": "lost"}, "stream_slot_lost"),
        ({"slot_works": False}, "stream_unread"),
        ({"subscription_errors": 3}, "stream_errors"),
        ({"subscription_works": False}, "stream_stopped"),
    ],
)
def test_a_stream_that_does_not_flow(changes: dict[str, object], code: str | None) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1")
    assert streams(seen, **changes) == ({code} if code else set())


@pytest.mark.parametrize("method", ["clone", "stream"])
def test_the_closed_copy_of_a_streamed_move_is_no_shard_that_lives_twice(method: str) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1", method=method)
    seen.schemas(B, shard2=empty_schema())
    twice = [f.shards for f in seen.findings("map") if f.code == "shard_twice"]
    assert twice == ([] if method == "stream" else [(2,)])


def test_what_a_move_that_is_over_left_is_told_once_for_each_node() -> None:
    seen = healthy()
    record(seen, MoveState.done)
    name = f"shardctl_{ID}"
    objects = (
        MoveObject("publication", name, ID),
        MoveObject("triggers", "shard2", ID),
        MoveObject("records", "shardctl.stream", ID),
        MoveObject("role", f"shardctl_{OTHER}", OTHER),  # of another cluster, perhaps
        MoveObject("publication", f"shardctl_{OTHER}", OTHER),
    )
    seen.see(A, "leftovers", of_moves=objects)
    found = {f.object: f.actual for f in seen.findings() if f.code == "left_by_move"}
    assert set(found) == {ID, OTHER}
    assert name in found[ID]
    assert "shard2" in found[ID]
    record(seen, MoveState.reserved, holder="ann@ops1")
    seen.see(A, "leftovers", of_moves=objects[:3])
    assert not [f for f in seen.findings() if f.code == "left_by_move"]
