"""A rehearsal alone, one beside a writer that does not end, and what a plan predicts."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.access import fence
from shardctl.moves import comparison, live_comparison, rehearsal, service
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures import commands
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.stream_moves import fill, left, planned, replace_step, untouched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from tests.fixtures.moves.own import Lab


def test_a_rehearsal_alone_reports_and_leaves_nothing(fleet_own: Lab) -> None:
    fill(fleet_own)
    words = ("move-shards", "2-3", "--to", "b", "--rehearse-only", "--yes", "-o", "json")
    state = str(fleet_own.directory / "state")
    done = commands.here("--topology", str(fleet_own.file), *words, XDG_STATE_HOME=state)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["method"], shown["state"]) == ("stream", "aborted")
    found = shown["report"]["rehearsal"]
    assert {
        "time", "first_time", "tables", "rows", "size_bytes", "differing", "elapsed_ms", "attempts",
        "writers_held_ms", "waited_ms", "predicted_pause_ms", "parts_ms",
    } == found.keys()  # fmt: skip
    assert found["rows"] == 7002
    untouched(fleet_own)
    assert fleet_own.copy("a").report["rehearsal"] == found  # type: ignore[index]  # it has one


def test_ddl_while_it_measures_is_named(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stop the stream then: its marks do not arrive."""
    parts = rehearsal.measured_parts

    def altered(*given: Any) -> dict[str, float]:
        with fleet_own.connect("a") as session:
            session.execute("ALTER TABLE shard2.photos ADD note text")
            session.execute("UPDATE shard2.photos SET note = ''")
        return parts(*given)

    monkeypatch.setattr(rehearsal, "measured_parts", altered)
    with pytest.raises(MoveStopped) as stopped:
        fleet_own.start(planned(fleet_own, [2, 3], "b", rehearse_only=True))
    assert stopped.value.parts()[0].code == "structure_changed"
    fleet_own.abort()
    assert left(fleet_own) == []


def test_a_rehearsal_that_was_interrupted_ends_when_it_is_resumed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its proof, and when all is compared."""
    with monkeypatch.context() as patch:
        replace_step(patch, rehearsal.STEP, lose)
        with pytest.raises(MoveStopped):
            fleet_own.start(planned(fleet_own, [2, 3], "b", rehearse_only=True))
    with monkeypatch.context() as patch:
        patch.setattr(service, "undo", lose)
        with pytest.raises(MoveStopped):
            fleet_own.resume()
    assert left(fleet_own)
    fleet_own.resume()
    untouched(fleet_own)


@pytest.fixture
def writing(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Give a session whose transaction writes to a moved shard before the rehearsal, and stays."""
    run = follow.STREAM_STEP.run
    with closing(fleet_own.connect("a", autocommit=False)) as session:

        def busy(context: MoveContext) -> None:
            run(context)
            session.execute("UPDATE shard2.photos SET user_id = 0")

        replace_step(monkeypatch, follow.STREAM_STEP, busy)
        yield session


def test_a_writer_that_does_not_end_is_named(
    fleet_own: Lab, writing: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients go on meanwhile."""
    pid = writing.info.backend_pid
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], "b", max_pause_s=1.0))
    assert isinstance(caught.value.error, fence.WritersLeft)
    assert str(pid) in caught.value.error.message
    assert "--terminate" in caught.value.error.hint
    assert [one for one in fleet_own.notices if f"session {pid}" in one]
    monkeypatch.undo()
    fleet_own.put(2)
    writing.rollback()
    fleet_own.resume()
    assert fleet_own.copy("b").state is MoveState.done


def test_a_rehearsal_goes_on_with_the_tables_that_are_left(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table keeps the moment of its proof."""
    fill(fleet_own)
    add = live_comparison.Results.add
    compared: list[str] = []
    monkeypatch.setattr(comparison, "SESSIONS", 1)

    def dies(self: live_comparison.Results, table: str, found: Any) -> None:
        add(self, table, found)
        compared.append(table)
        self.flush()
        lose()

    monkeypatch.setattr(live_comparison.Results, "add", dies)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    first = list(compared)
    assert 1 <= len(first) < 3

    def kept(self: live_comparison.Results, table: str, found: Any) -> None:
        add(self, table, found)
        compared.append(table)

    monkeypatch.setattr(live_comparison.Results, "add", kept)
    fleet_own.resume()
    assert len(compared) == len(set(compared)) == 3
    report = fleet_own.copy("a").report
    assert report is not None
    found = report["rehearsal"]
    assert (found["tables"], found["rows"]) == (3, 7002)
    assert found["first_time"] < found["time"]
    assert left(fleet_own) == []
