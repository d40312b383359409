"""The parts of a cutover that wait, that undo, and that come too late: each keeps a promise."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.access import fence
from shardctl.access.fence import WritersLeft
from shardctl.moves import claims, cutover, undoing
from shardctl.moves.attempt import Attempt
from shardctl.moves.context import Use
from shardctl.moves.marks import StandbysBehind
from shardctl.moves.paused_poolers import PausedPoolers
from shardctl.state import journal
from tests.fixtures.moves.fenced import MOVE, RETIRED, SCHEMA, Fenced
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

WRITE = "INSERT INTO shard2.photos VALUES (1)"


def test_a_writer_behind_the_fence_is_waited_for_until_it_ends(
    fenced: Fenced, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[int | None]] = []
    left = fence.left

    def ends_at_the_third(session: Any, move: str) -> tuple[list[int | None], list[str]]:
        pids, unlogged = left(session, move)
        found.append(pids)
        if len(found) == 3:
            fenced.other.commit()
        return pids, unlogged

    fenced.other.execute(WRITE)
    with pytest.raises(WritersLeft):
        fenced.cut()
    monkeypatch.setattr(fence, "left", ends_at_the_third)
    fenced.drain(patience_s=600)
    writer = fenced.other.info.backend_pid
    assert found[:3] == [[writer]] * 3
    assert found[-1] == []


def test_a_writer_keeps_the_fence_of_a_stream_from_going_up(fenced: Fenced) -> None:
    """What it commits behind the mark would not be among what the target has."""
    fenced.other.execute(WRITE)
    with pytest.raises(WritersLeft):
        fenced.put_up_of_stream()
    assert fenced.named() == SCHEMA
    fenced.other.commit()
    fenced.put_up_of_stream()
    assert fenced.named() == RETIRED


def test_who_has_taken_a_number_does_not_write(fenced: Fenced) -> None:
    """With `--terminate` it would be ended."""
    fenced.session.execute("CREATE SEQUENCE shard2.numbers")
    fenced.other.execute("SELECT nextval('shard2.numbers')")
    assert fence.lasting(fenced.session, [SCHEMA], since=time.monotonic() + 1) == []
    fenced.other.execute(WRITE)
    lasting = fence.lasting(fenced.session, [SCHEMA], since=time.monotonic() + 1)
    assert lasting == [fenced.other.info.backend_pid]


def test_a_fence_of_a_stream_whose_schema_is_missing_ends(fenced: Fenced) -> None:
    fenced.session.execute("ALTER SCHEMA shard2 RENAME TO away")
    with pytest.raises(psycopg.errors.InvalidSchemaName):
        fenced.put_up_of_stream()


def test_a_fence_is_undone_up_to_the_decision_and_comes_not_after_that(fenced: Fenced) -> None:
    before = fenced.revision
    fenced.call_off()
    with raises_code("not_at_cutover"):
        fenced.put_up(revision=before)
    fenced.put_up()
    fenced.call_off()
    fenced.cut()
    assert journal.mark_drained(fenced.session, MOVE, revision=fenced.revision)
    fenced.call_off()


def test_a_fence_of_a_server_that_hung_comes_too_late(fenced: Fenced) -> None:
    with raises_code("fence_too_late"):
        fenced.put_up(lasts_s=-600)
    assert fenced.named() == SCHEMA
    fenced.call_off()


def test_an_undo_that_has_lost_the_source_ends_no_process_of_before(fleet_own: Lab) -> None:
    """After a restart its guard's number may be another's."""
    world = fleet_own.up_to("clone", [2, 3], "c")
    cutover.guard_session(world)
    lost = world.sessions[world.plan.source, Use.lock]
    fleet_own.ask("a", f"SELECT pg_terminate_backend({lost.info.backend_pid}, 5000)")
    lost.close()
    at = Attempt(world, PausedPoolers(fleet_own.topology, world.plan, purpose="test"), None, None)  # type: ignore[arg-type]
    at.budget = SimpleNamespace(deadline=0.0, revision=1)  # type: ignore[assignment]
    undoing.lift_fence(at)
    assert world.holds(world.plan.source)
    assert world.open_session(world.plan.source, Use.guard) is None
    world.close()


def test_new_ids_are_above_those_of_a_source_whose_clock_is_ahead(fleet_own: Lab) -> None:
    world = fleet_own.up_to("clone", [2, 3], "c")
    world.close()
    fleet_own.ask(
        "a",
        "UPDATE shardctl.move SET state = 'promoting', drained_at = clock_timestamp() + '1 minute'",
    )
    fleet_own.ask("a", claims.opening(world).as_string())
    for shard in (2, 3):
        above = f"SELECT shardctl.id_time(shard{shard}.next_id()) > drained_at FROM shardctl.move"
        assert fleet_own.ask("a", above) == [(True,)]
    # Without blocks only the clock keeps ids apart.
    world.topology = replace(world.topology, id=replace(world.topology.id, generator="classic"))
    ahead = "UPDATE shardctl.move SET drained_at = clock_timestamp() + '500 milliseconds'; "
    fleet_own.ask("a", ahead + claims.opening(world).as_string())
    passed = "SELECT clock_timestamp() > drained_at FROM shardctl.move"
    assert fleet_own.ask("a", passed) == [(True,)]


def test_a_standby_that_has_not_flushed_the_fence_keeps_a_move_from_its_decision(
    fleet_own: Lab,
) -> None:
    fleet_own.ask("a", "SELECT pg_create_physical_replication_slot('away', true)")
    stopped = fleet_own.stopped([2, 3], "b", max_pause_s=2.0)
    assert isinstance(stopped.error, StandbysBehind)
    assert stopped.error.names == ("away",)
    assert fleet_own.put(2)
    fleet_own.ask("a", "SELECT pg_drop_replication_slot('away')")
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "b"


@pytest.mark.parametrize("to", ["b", "c"])
def test_a_process_that_wakes_up_behind_its_guards_changes_nothing(fleet_own: Lab, to: str) -> None:
    words = ("move-shards", "2-3", "--to", to, "--max-pause", "2s", "--yes", "-o", "json")
    mover = fleet_own.begun(*words, before="decide", by="SIGSTOP")
    wait_for(lambda: not fleet_own.paused())
    late = fleet_own.put(2)
    mover.send_signal(signal.SIGCONT)
    printed, _ = mover.communicate()
    assert json.loads(printed)["errors"][0]["code"] == "not_promoting"
    assert fleet_own.leads("shard2") == "a"
    fleet_own.resume()
    assert (late,) in fleet_own.ask(to, "SELECT id FROM shard2.photos")
    assert fleet_own.leads("shard2") == to
    assert fleet_own.problems() == []
