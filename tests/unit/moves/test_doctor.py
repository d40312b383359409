"""What `moves doctor` clears and what it leaves alone, by what was seen on the nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import doctor, plan
from shardctl.moves.doctor import Fleet
from shardctl.moves.prune import View
from shardctl.state.journal import MoveState
from shardctl.state.ledger import Entry, Ledger
from shardctl.state.move_objects import Kind, MoveObject, NodeObjects
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.servers.postgres import local_node, local_topology
from tests.unit.moved import move

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
ENDED, OPEN, UNKNOWN = "5f3a9c1e", "0badcafe", "deadbeef"


def entry(of: str, state: MoveState, **changes: Any) -> Entry:
    given = {"shards": (2,), "schemas": ("shard2",), "retired": (f"shard2__retired_{of}",)}
    return Entry(move(state, id=of, method=plan.STREAM, **given, **changes), (), None)


def named(kind: Kind, move: str = ENDED, **changes: Any) -> MoveObject:
    return dataclasses.replace(MoveObject(kind, f"shardctl_{move}", move), **changes)


def fleet(
    objects: dict[NodeName, Sequence[MoveObject]] | None = None,
    *,
    entries: Sequence[Entry] = (entry(ENDED, MoveState.aborted),),
    opened: Sequence[str] = (),
    unread: Sequence[NodeName] = (),
    away: Sequence[NodeName] = (),
) -> Fleet:
    """Give a fleet of which a has shards 0 to 3 and b has 4 to 7."""
    own, srv = {A: range(4), B: range(4, 8), C: range(0)}, Path("/srv")
    topology = local_topology(srv, *(local_node(srv, name, 5432, own[name]) for name in own))
    owners = dict(topology.owners())
    views, found = {}, {}
    for name in (A, B, C):
        if name in (*unread, *away):
            continue
        live = frozenset(topology.schema(s) for s in topology.nodes[name].shards)
        found[name] = NodeObjects(tuple((objects or {}).get(name, ())), frozenset(opened))
        views[name] = View(1, owners, live)
    ledger = Ledger(tuple(entries), tuple((name, "down") for name in unread))
    unread_why = dict.fromkeys(unread, "down")
    return Fleet(topology, ledger, views, found, unread_why, frozenset(away))


def verdicts(seen: Fleet) -> dict[tuple[str, str], str | None]:
    return {(one.node, one.object.kind): one.why_not for one in doctor.left(seen)}


@pytest.mark.parametrize("move", [ENDED, UNKNOWN])
def test_what_a_journal_may_know_that_could_not_be_read_stays(move: str) -> None:
    seen = verdicts(fleet({A: [named("slot", move)]}, unread=[B]))
    assert seen[A, "slot"] is not None


def test_a_node_that_had_no_part_in_a_move_may_be_away() -> None:
    assert verdicts(fleet({A: [named("slot")]}, unread=[C])) == {(A, "slot"): None}
    assert verdicts(fleet({A: [named("slot")]}, away=[C])) == {(A, "slot"): None}
    assert verdicts(fleet({A: [named("slot")]}, away=[B]))[A, "slot"] is not None


@pytest.mark.parametrize("kind", ["slot", "role"])
def test_what_another_cluster_on_the_server_may_have_made_stays(kind: Kind) -> None:
    unknown = named(kind, UNKNOWN, detail="physical, inactive")
    assert verdicts(fleet({A: [unknown]}))[A, kind] is not None
    assert verdicts(fleet({A: [named(kind, detail="physical")]}))[A, kind] is None


CLOSED = MoveObject("triggers", "shard2", ENDED, "1 table")


def test_triggers_of_copies_that_serve_are_removed_and_their_schema_stays() -> None:
    seen = fleet({B: [CLOSED]}, opened=[ENDED])
    live = {**seen.views, B: dataclasses.replace(seen.views[B], live=frozenset(["shard2"]))}
    [one] = doctor.left(dataclasses.replace(seen, views=live))
    assert (one.object.kind, one.why_not) == ("triggers", None)


def test_a_copy_stays_where_nothing_proves_that_its_shard_lives_elsewhere() -> None:
    seen = fleet({B: [CLOSED]})
    lost = dataclasses.replace(seen.views[A], live=frozenset())
    differs = dataclasses.replace(lost, map={**lost.map, ShardId(2): B})
    entries = (entry(ENDED, MoveState.aborted), entry(OPEN, MoveState.reserved))
    for node, stays in (
        (A, fleet({A: [CLOSED]})),  # which owns the shard
        (B, fleet({B: [MoveObject("triggers", "public", ENDED)]})),
        (B, fleet({B: [CLOSED]}, unread=[C])),
        (B, fleet({B: [CLOSED]}, entries=entries)),
        (B, dataclasses.replace(seen, views={**seen.views, A: lost})),
        (B, dataclasses.replace(seen, views={**seen.views, A: differs})),
    ):
        assert verdicts(stays)[node, "schema"] is not None


def test_rows_about_a_move_stay_as_long_as_triggers_read_them() -> None:
    records = MoveObject("records", "shardctl.stream", ENDED)
    seen = verdicts(fleet({A: [CLOSED, records]}))
    assert ENDED in (seen[A, "records"] or "")
    assert verdicts(fleet({B: [CLOSED, records]}))[B, "records"] is None
