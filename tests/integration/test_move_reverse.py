"""A streamed move that is reversed: the shards go back without a copy, with what came since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import copy, follow, prune, rehearsal, reverse_kept, service
from shardctl.moves.plan import Options
from shardctl.moves.service import MoveStopped
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import entry, moved, replace_step, reverse, state
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


def refused(lab: Lab, move: str) -> None:
    with raises_code("not_reversible", match=move):
        reverse(lab, move)


def change_one(lab: Lab, node: str, note: str) -> None:
    """Change one of several equal rows in a table without a key, and delete one of others."""
    one = "ctid = (SELECT ctid FROM shard2.bare WHERE n = {} AND note = 'same' LIMIT 1)"
    with lab.connect(node) as session:
        session.execute(f"UPDATE shard2.bare SET note = '{note}' WHERE {one.format(1)}".encode())
        session.execute(f"DELETE FROM shard2.bare WHERE {one.format(2)}".encode())


def identity(lab: Lab, node: str) -> str:
    [(found,)] = lab.ask(
        node, "SELECT relreplident::text FROM pg_class WHERE oid = 'shard2.bare'::regclass"
    )
    return str(found)


def keep_what_it_needs(lab: Lab) -> None:
    """See that prune drops no copies that a reverse needs, whatever it was told before."""
    known = service.read(lab.topology)
    found = prune.plan(lab.topology, known, accept_unconfirmed=True, now=True, purpose="test")
    assert [(one.node, one.shard) for one in found] == [("a", 2), ("a", 3)]
    assert all(one.why_not and "can be reversed" in one.why_not for one in found)
    with pytest.raises(prune.PruneUnfinished):
        prune.carry_out(lab.topology, found, Silent())


def keep_and_undo(lab: Lab, context: MoveContext) -> None:
    """Make what a reverse needs, and undo that, as an abort does."""
    before, step = left(lab), reverse_kept.STEP
    step.run(context)
    assert f"shardctl_{context.plan.reverse}" in str(left(lab))
    assert step.undo is not None
    step.undo(context)
    assert left(lab) == before


def refuse(lab: Lab, schema: str) -> None:
    """See that the copies on node a accept no write, as one node owns a shard at a time."""
    with lab.connect("a") as session:
        session.execute("SET session_replication_role = replica")
        with pytest.raises(psycopg.Error) as caught:
            session.execute(f"UPDATE {schema}.photos SET user_id = 1".encode())
    assert caught.value.sqlstate == "25006"


def test_shards_go_back_with_what_clients_have_changed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fleet_own.put(2)
    with fleet_own.connect("a") as session:
        session.execute("CREATE SEQUENCE shard2.ring MAXVALUE 10 CYCLE")
        session.execute("SELECT nextval('shard2.ring') FROM generate_series(1, 8)")
        session.execute(
            "CREATE TABLE shard2.bare AS SELECT n % 3 AS n, 'same' AS note"
            " FROM generate_series(1, 9) AS one (n)"
        )

    def then_change(context: MoveContext) -> None:
        follow.subscribe(context)
        change_one(fleet_own, "a", "there")
        keep_and_undo(fleet_own, context)

    replace_step(monkeypatch, follow.STREAM_STEP, then_change)
    there = moved(fleet_own, identity_full=True)
    monkeypatch.undo()
    assert identity(fleet_own, "b") == "f"  # as long as it is published for the reverse
    change_one(fleet_own, "b", "back")
    drawn = "SELECT nextval('shard2.ring') FROM generate_series(1, 4)"
    assert fleet_own.ask("b", drawn) == [(9,), (10,), (1,), (2,)]
    assert there.reverse is not None
    assert there.can() == ["reverse", "finish"]
    assert there.as_json()["reverse"]["state"] == "open"
    assert there.as_json()["reverse"]["wal_bytes"] is not None
    shown = fleet_own.here("status", "--sample", "0").stdout
    assert ("reverse: open" in shown, "slot" in shown) == (True, False)  # told once
    keep_what_it_needs(fleet_own)
    refuse(fleet_own, there.move.retired[0])
    second = fleet_own.put(2)
    with fleet_own.alias("shard2") as session:
        session.execute("UPDATE photos SET user_id = 77 WHERE id = %s", [first])
        session.execute("DELETE FROM photos WHERE id <> %s AND id <> %s", [first, second])

    def closed(context: MoveContext) -> None:
        refuse(fleet_own, "shard2")
        follow.subscribe(context)

    replace_step(monkeypatch, follow.STREAM_STEP, closed)
    reverse(fleet_own, there.move.id)
    assert fleet_own.leads("shard2") == "a"
    third = fleet_own.put(2)
    assert fleet_own.ask("a", "SELECT nextval('shard2.ring')") == [(3,)]
    found = fleet_own.ask("a", "SELECT id, user_id FROM shard2.photos ORDER BY id")
    assert found == [(first, 77), (second, 2), (third, 2)]
    found = fleet_own.ask("a", "SELECT n, note FROM shard2.bare WHERE n > 0 ORDER BY n, note")
    assert found == [(1, "back"), (1, "same"), (1, "there"), (2, "same")]
    assert identity(fleet_own, "a") == "d"
    back = entry(fleet_own, there.reverse.move)
    assert (back.state, back.move.proof) == ("done", "compared")
    assert (back.move.source, back.move.target) == ("b", "a")
    assert back.can() == []
    assert state(fleet_own, there.move.id) == "reversed"
    assert left(fleet_own) == []
    assert fleet_own.problems() == []
    refused(fleet_own, there.move.id)
    refused(fleet_own, back.move.id)


@pytest.mark.long
def test_a_reverse_stops_where_a_move_would_abort_or_drop_its_slot(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it goes on from is not made again."""
    there = moved(fleet_own)
    fleet_own.put(2)
    with pytest.raises(ShardctlError) as caught:
        reverse(fleet_own, there.move.id, max_wal_bytes=1 << 10)
    assert [one.code for one in caught.value.parts()] == ["reverse_wal"]
    parts = rehearsal.measured_parts
    monkeypatch.setattr(
        rehearsal, "measured_parts", lambda *given: parts(*given) | {"claim": 5_500.0}
    )
    with pytest.raises(MoveStopped) as stopped:
        reverse(fleet_own, there.move.id)
    assert stopped.value.parts()[0].code == "reverse_pause_too_long"
    assert fleet_own.leads("shard2") == "b"
    monkeypatch.undo()
    fleet_own.resume()
    assert state(fleet_own, there.move.id) == "reversed"
    assert fleet_own.leads("shard2") == "a"
    assert left(fleet_own) == []


def test_what_another_operator_has_aborted_meanwhile_is_not_completed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its poolers and the topology file would lead to the node that has no shards."""
    there = moved(fleet_own)
    late = reverse_kept.plan_reverse(fleet_own.topology, there, Options(5.0, 0.0))
    replace_step(monkeypatch, copy.REOPEN_STEP, lose)
    with pytest.raises(MoveStopped):
        reverse(fleet_own, there.move.id)
    monkeypatch.undo()
    seen = fleet_own.entry()
    fleet_own.abort()
    with raises_code("move_ended"):
        service.start(fleet_own.topology, late, Silent(), lambda _: None)
    with raises_code("move_ended"):
        service.resume(fleet_own.topology, seen, Silent(), lambda _: None, service.Given())
    assert fleet_own.leads("shard2") == "b"
    assert fleet_own.problems() == []
