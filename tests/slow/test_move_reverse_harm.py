"""What keeps a move from being reversed, and what a reverse that was aborted leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import reversing, service, stream_cutover
from shardctl.moves.stopped import MoveStopped
from tests.fixtures.moves.stream_moves import entry, left, moved, reverse, state

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def refused(lab: Lab, move: str) -> str:
    """Try to reverse a move; all stays as it is."""
    with pytest.raises(ShardctlError) as caught:
        reverse(lab, move)
    assert lab.leads("shard2") == "b"
    assert not [one for one in service.read(lab.topology).entries if one.open]
    return "\n".join(f"{one.code}: {one.message}" for one in caught.value.parts())


def test_retired_copies_that_were_touched_are_named(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    table = f"{there.move.retired[0]}.photos"
    with fleet_own.connect("a") as session:
        for statement in (f"UPDATE {table} SET user_id = 1", f"DELETE FROM {table}"):
            with pytest.raises(psycopg.Error) as caught:
                session.execute(f"SET session_replication_role = replica; {statement}".encode())
            assert caught.value.sqlstate == "25006"
        session.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL".encode())
        session.execute(f"UPDATE {table} SET user_id = 1".encode())
        session.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER shardctl_copy".encode())
    said = refused(fleet_own, there.move.id)
    assert "retired_touched" in said
    assert table in said
    assert state(fleet_own, there.move.id) == "open"
    reversing.finish(fleet_own.topology, entry(fleet_own, there.move.id))
    assert left(fleet_own) == []


def test_ddl_on_the_shards_since_the_move_is_named(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    fleet_own.put(2)
    with fleet_own.connect("b") as session:
        session.execute("ALTER TABLE shard2.photos ALTER COLUMN user_id TYPE bigint USING user_id")
        session.execute("CREATE TABLE shard3.more (id bigint PRIMARY KEY)")
    said = refused(fleet_own, there.move.id)
    assert "reverse_altered" in said
    assert "shard2.photos was altered" in said
    assert "shard3.more was made" in said


def test_a_source_on_another_timeline_is_refused(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    with fleet_own.connect("a") as session:
        session.execute(
            "UPDATE shardctl.stream SET note = jsonb_set(note, '{timeline}', '\"7\"')"
            " WHERE what = 'reverse source kept'"
        )
    assert "retired_on_another_timeline" in refused(fleet_own, there.move.id)


def test_a_source_that_lacks_the_retired_copies_is_refused(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    with fleet_own.connect("a") as session:
        session.execute(f"DROP SCHEMA {there.move.retired[1]} CASCADE".encode())
    said = refused(fleet_own, there.move.id)
    assert "retired_missing" in said
    assert there.move.retired[1] in said


def test_a_reverse_that_is_aborted_gives_the_names_back_and_ends_the_possibility(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(fleet_own)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream_cutover, "hold_snapshot", stop)
    with pytest.raises(MoveStopped):
        reverse(fleet_own, there.move.id)
    monkeypatch.undo()
    assert state(fleet_own, there.move.id) == "begun"
    assert fleet_own.leads("shard2") == "b"
    fleet_own.abort()
    assert state(fleet_own, there.move.id) == "finished"
    assert set(there.move.retired) <= fleet_own.schemas("a")
    assert "shard2" not in fleet_own.schemas("a")
    assert left(fleet_own) == []
    assert fleet_own.problems() == []
    assert fleet_own.put(2)
