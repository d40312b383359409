"""A streamed move that is reversed: the shards go back without a copy, with what came since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.moves import reversing
from shardctl.moves.steps import follow
from shardctl.state.journal import MoveState
from tests.fixtures.moves.stream_moves import entry, left, moved, replace_step, reverse, state
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
    second = fleet_own.put(2)
    with fleet_own.alias("shard2") as session:
        session.execute("UPDATE photos SET user_id = 77 WHERE id = %s", [first])
        session.execute("DELETE FROM photos WHERE id <> %s AND id <> %s", [first, second])
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
def test_a_move_can_be_finished(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    assert left(fleet_own) != []
    with fleet_own.connect("a") as session, pytest.raises(psycopg.Error) as caught:
        session.execute(f"UPDATE {there.move.retired[0]}.photos SET user_id = 1".encode())
    assert caught.value.sqlstate == "25006"
    reversing.finish(fleet_own.topology, there)
    assert left(fleet_own) == []
    assert state(fleet_own, there.move.id) == "finished"
    assert entry(fleet_own, there.move.id).can() == []
    with raises_code("nothing_to_finish"):
        reversing.finish(fleet_own.topology, entry(fleet_own, there.move.id))


@pytest.mark.long
def test_nothing_is_kept_where_that_is_not_wanted(fleet_own: Lab) -> None:
    there = moved(fleet_own, keep_reverse_s=0.0)
    assert left(fleet_own) == []
    assert there.reverse is None
    assert there.as_json()["reverse"] is None
    refused(fleet_own, there.move.id)


@pytest.mark.long
def test_an_aborted_move_leaves_nothing_for_a_reverse(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardctl.moves import stream_cutover

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream_cutover, "hold_snapshot", stop)
    with pytest.raises(Exception):  # noqa: B017, PT011
        moved(fleet_own)
    assert any(node == "b" for node, *_ in left(fleet_own))
    fleet_own.abort()
    assert left(fleet_own) == []
    assert fleet_own.copy("b").state is MoveState.aborted
