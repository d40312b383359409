"""What keeps a move from being reversed: somebody has touched what the reverse goes on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import reversing, service, stream_cutover
from shardctl.moves.steps import reopen, reserve
from shardctl.moves.stopped import MoveStopped
from tests.fixtures.moves.own import messages
from tests.fixtures.moves.reversals import entry, moved, replace_step, reverse, state
from tests.fixtures.moves.stream_moves import left
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
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


def test_ddl_that_comes_while_the_copies_follow_stops_the_reverse(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(fleet_own)

    def then_alter(context: MoveContext) -> None:
        reopen.run(context)
        with fleet_own.connect("b") as session:
            session.execute("CREATE INDEX late ON shard2.photos (user_id)")

    replace_step(monkeypatch, reopen.STEP, then_alter)
    with pytest.raises(MoveStopped) as caught:
        reverse(fleet_own, there.move.id)
    assert "shard2.photos was altered" in messages(caught.value)
    fleet_own.abort()
    assert fleet_own.leads("shard2") == "b"
    assert left(fleet_own) == []


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


def test_a_slot_that_is_lost_while_the_copies_follow_aborts_the_reverse(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(fleet_own)

    def then_fill(context: MoveContext) -> None:
        reopen.run(context)
        with fleet_own.connect("b") as session:
            session.execute("CREATE TABLE public.filled (text text)")
            session.execute(
                "INSERT INTO public.filled SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
            )
        wait_for(lambda: not fleet_own.ask("b", "SELECT FROM pg_replication_slots"))

    replace_step(monkeypatch, reopen.STEP, then_fill)
    with pytest.raises(ShardctlError) as caught:
        reverse(fleet_own, there.move.id, max_wal_bytes=8 << 20)
    assert "WalLimitReached" in messages(caught.value)
    assert state(fleet_own, there.move.id) == "finished"
    assert fleet_own.leads("shard2") == "b"
    with fleet_own.connect("b") as session:
        session.execute("DROP TABLE public.filled")
    assert left(fleet_own) == []
    assert fleet_own.problems() == []


def test_a_reverse_that_meets_a_schema_of_another_keeps_that(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(fleet_own)
    require = reserve._require_absent

    def made_meanwhile(context: MoveContext) -> None:
        with fleet_own.connect("a") as session:
            session.execute("CREATE SCHEMA shard2")
            session.execute("CREATE TABLE shard2.others (id bigint)")
        require(context)

    monkeypatch.setattr(reserve, "_require_absent", made_meanwhile)
    with pytest.raises(MoveStopped) as caught:
        reverse(fleet_own, there.move.id)
    assert "schema shard2 already" in messages(caught.value)
    monkeypatch.undo()
    assert state(fleet_own, there.move.id) == "begun"
    fleet_own.abort()
    assert fleet_own.ask("a", "SELECT to_regclass('shard2.others') IS NOT NULL") == [(True,)]
    assert set(there.move.retired) <= fleet_own.schemas("a")
    assert left(fleet_own) == []
