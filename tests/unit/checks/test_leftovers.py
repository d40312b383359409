"""What the check `leftovers` makes of what is left on nodes, without a server."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

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


def test_a_move_is_a_note_while_somebody_is_at_it_and_then_a_warning() -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="shardctl move-shards by ann@ops1")
    (running,) = seen.findings()
    assert told([running]) == [("leftovers", "move_running", None, (2, 3), ID)]
    assert running.severity.value == "note"
    assert "shardctl move-shards by " in running.actual
    record(seen, MoveState.reserved)
    (finding,) = seen.findings()
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), ID)]
    assert finding.severity.value == "warning"
    assert "`shardctl moves resume " in finding.hint
    assert "`shardctl moves abort " in finding.hint


@pytest.mark.parametrize("state", [MoveState.promoting, MoveState.claimed])
def test_between_two_owners_it_is_an_error_without_a_way_back(state: MoveState) -> None:
    seen = healthy()
    record(seen, state)
    (finding,) = seen.findings()
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), ID)]
    assert finding.severity.value == "error"
    assert finding.actual.startswith(f"unfinished, state {state}: from a to b, ")
    assert "abort" not in finding.hint


def test_retired_schemas_are_told_with_their_age_and_whether_they_are_due() -> None:
    seen = healthy()
    record(seen, MoveState.done, retain_s=3600)
    retire(seen)
    (kept,) = seen.findings()
    assert told([kept]) == [("leftovers", "retired_kept", "a", (2, 3), ID)]
    assert kept.severity.value == "note"
    assert kept.actual.startswith("2 retired schemas, 16 kB, of a move that ended 0 s ago")
    assert ", kept until 2026-11-21 08:58:16 UTC" in kept.actual
    retire(seen, after=timedelta(days=1, hours=1), size=None)
    (due,) = seen.findings()
    assert told([due]) == [("leftovers", "retired_due", "a", (2, 3), ID)]
    unknown = "2 retired schemas, unknown size, of a move that ended 1 d 1 h ago"
    assert due.actual == unknown
    assert due.hint == "run `shardctl prune` to free the space"


def test_unconfirmed_copies_are_a_warning_and_differing_ones_an_error() -> None:
    seen = healthy()
    record(seen, MoveState.unconfirmed, proof=None)
    assert seen.findings() == ()
    retire(seen)
    unconfirmed, due = seen.findings()
    assert told([unconfirmed]) == [("leftovers", "move_unconfirmed", None, (2, 3), ID)]
    assert unconfirmed.severity.value == "warning"
    assert "`shardctl prune --accept-unconfirmed`" in unconfirmed.hint
    assert due.hint == "run `shardctl prune --accept-unconfirmed` to free the space"
    record(seen, MoveState.unconfirmed, proof="differs")
    (differs,) = seen.findings()
    assert told([differs]) == [("leftovers", "copies_differ", None, (2, 3), ID)]
    assert differs.severity.value == "error"


def test_a_retired_schema_that_no_move_explains_is_the_maps_to_tell() -> None:
    seen = healthy()
    name = f"shard2__retired_{OTHER}"
    seen.schemas(A, **{name: empty_schema()})
    seen.put(A, "map", {name: 8192})
    (finding,) = seen.findings()
    assert told([finding]) == [("map", "retired_schema", "a", (), name)]
    assert finding.actual == "8,192 bytes"


@pytest.mark.parametrize(("held", "codes"), [(50, set()), (51, {"slot_near_limit"})])
def test_a_slot_that_comes_near_its_limit_is_told(held: int, codes: set[str]) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1", max_wal_bytes=100)
    slot = Slot(f"shardctl_{ID}", "logical", active=True, wal_status=None, retained_bytes=held)
    seen.see(A, "leftovers", slots=(slot,), watched=frozenset({slot.name}))
    assert {f.code for f in seen.findings()} - {"move_running"} == codes


def streams(seen: Facts, **changes: object) -> dict[str, str]:
    """Let a stream of that move be so, on source and target; give what is told, by the codes."""
    slot: dict[str, object] = {"works": True, "status": "reserved", "lag_bytes": 16, "errors": 0}
    subscription: dict[str, object] = {**slot, "status": "enabled", "lag_bytes": None}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        {"slot": slot, "subscription": subscription}[part][field] = value
    name = f"shardctl_{ID}"
    seen.see(A, "leftovers", streams=(Stream("slot", name, **slot),))  # type: ignore[arg-type]
    seen.see(B, "leftovers", streams=(Stream("subscription", name, **subscription),))  # type: ignore[arg-type]
    return {f.code: f.actual for f in seen.findings() if f.code.startswith("stream")}


def test_a_stream_that_flows_is_told_with_its_move_alone() -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1")
    assert streams(seen) == {}


@pytest.mark.parametrize(
    ("changes", "code", "actual"),
    [
        ({"slot_status": "lost"}, "stream_slot_lost", "has lost its WAL"),
        ({"slot_works": False}, "stream_unread", "the target is 16 bytes behind"),
        ({"subscription_errors": 3}, "stream_errors", "failed 3 times"),
        ({"subscription_works": False}, "stream_stopped", "has no worker"),
    ],
)
def test_a_stream_that_does_not_flow(changes: dict[str, object], code: str, actual: str) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1")
    found = streams(seen, **changes)
    assert set(found) == {code}
    assert actual in found[code]


@pytest.mark.parametrize("method", ["clone", "stream"])
def test_the_closed_copy_of_a_streamed_move_is_no_shard_that_lives_twice(method: str) -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1", method=method)
    seen.schemas(B, shard2=empty_schema())
    twice = [f.shards for f in seen.findings("map") if f.code == "shard_twice"]
    assert twice == ([] if method == "stream" else [(2,)])


def test_a_slot_that_no_subscription_has_yet_is_not_read() -> None:
    seen = healthy()
    record(seen, MoveState.reserved, holder="ann@ops1")
    assert streams(seen, slot_works=False, subscription_status="disabled") == {}


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
    assert found == {
        ID: f"left by a move that is done: publication {name}, triggers in schema shard2",
        OTHER: f"left by a move that no journal has: publication shardctl_{OTHER}",
    }
    record(seen, MoveState.reserved, holder="ann@ops1")
    seen.see(A, "leftovers", of_moves=objects[:3])
    assert not [f for f in seen.findings() if f.code == "left_by_move"]
