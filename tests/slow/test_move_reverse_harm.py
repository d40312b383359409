"""What keeps a move from being reversed, and what a reverse that was aborted leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.checks.verify import verify
from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import reverse_kept, service
from shardctl.moves.plan import Options
from shardctl.moves.service import MoveStopped
from tests.fixtures.moves.own import messages
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import entry, moved, reverse, state

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def refused(lab: Lab, move: str) -> str:
    """Try to reverse a move; all stays as it is."""
    with pytest.raises(ShardctlError) as caught:
        reverse(lab, move)
    assert lab.leads("shard2") == "b"
    assert not [one for one in service.read(lab.topology).entries if one.open]
    return "\n".join(f"{one.code}: {one.message}" for one in caught.value.parts())


def test_whatever_was_changed_since_the_move_is_named(fleet_own: Lab) -> None:
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
    other = there.move.retired[1]
    with fleet_own.connect("a") as session:
        session.execute(f"CREATE TABLE {other}.more (id bigint)".encode())
    with fleet_own.connect("b") as session:
        session.execute("CREATE TABLE shard3.more (id bigint PRIMARY KEY)")
    said = refused(fleet_own, there.move.id)
    for told in ("retired_touched", table, f"{other}.more was made", "reverse_altered",
                 "shard3.more was made"):  # fmt: skip
        assert told in said
    with fleet_own.connect("a") as session:
        session.execute(f"DROP SCHEMA {other} CASCADE".encode())
    assert f"retired_missing: node a: it lacks retired copies: {other}" in refused(
        fleet_own, there.move.id
    )
    assert state(fleet_own, there.move.id) == "open"
    reverse_kept.finish(fleet_own.topology, entry(fleet_own, there.move.id))
    assert left(fleet_own) == []


def test_an_old_source_that_has_failed_over_is_refused(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    fleet_own.server("a").stop()
    (fleet_own.directory / "nodes" / "a" / "standby.signal").touch()
    fleet_own.server("a").start()
    assert fleet_own.ask("a", "SELECT pg_promote()") == [(True,)]
    assert "retired_on_another_timeline" in refused(fleet_own, there.move.id)


def test_a_reverse_waits_for_an_old_source_that_is_away_and_outlives_restarts(
    fleet_own: Lab,
) -> None:
    there = moved(fleet_own)
    assert there.reverse is not None
    fleet_own.server("a").stop(mode="immediate")
    assert "node_unavailable" in refused(fleet_own, there.move.id)
    fleet_own.server("a").start()
    fleet_own.server("b").stop(mode="immediate")  # it sets the slot back, and ends its guard
    fleet_own.server("b").start()
    put = fleet_own.put(2)
    every = service.read(fleet_own.topology).entries
    assert [one.move.id for one in reverse_kept.unguarded(every)] == [there.move.id]
    found = verify(fleet_own.topology, ["leftovers"], deep=False, progress=Silent()).findings
    [unwatched] = [one for one in found if one.code == "slot_unwatched"]
    assert unwatched.object == there.reverse.slot
    reverse_kept.guard(fleet_own.topology, there)
    assert reverse_kept.unguarded(service.read(fleet_own.topology).entries) == []
    reverse(fleet_own, there.move.id)
    assert (put,) in fleet_own.ask("a", "SELECT id FROM shard2.photos")
    assert fleet_own.problems() == []


def test_a_reverse_that_begins_behind_a_finish_is_aborted(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    late = reverse_kept.plan_reverse(fleet_own.topology, there, Options(5.0, 0.0))
    reverse_kept.finish(fleet_own.topology, there)
    with pytest.raises(MoveStopped) as caught:
        service.start(fleet_own.topology, late, Silent(), lambda _: None)
    assert "reverse_lost" in messages(caught.value)
    fleet_own.abort()
    assert fleet_own.leads("shard2") == "b"
    assert set(there.move.retired) <= fleet_own.schemas("a")
    assert left(fleet_own) == []
    assert fleet_own.problems() == []
