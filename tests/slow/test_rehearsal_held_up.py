"""A rehearsal beside clients that write, and one that loses its sessions."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.access import fence
from shardctl.moves import attempt, comparison, live_comparison
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.rehearsals import MORE, fill
from tests.fixtures.moves.stream_moves import left, planned, replace_step
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from tests.fixtures.moves.own import Lab


def test_writers_go_on_during_a_rehearsal(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Savepoints, rollbacks, updates and deletes, by four clients."""
    fill(fleet_own)
    stop = threading.Event()
    counts = [0] * 4
    compare = live_comparison.compare

    def write(number: int) -> None:
        with closing(fleet_own.connect("a", autocommit=False)) as session:
            while not stop.is_set():
                with session.transaction(force_rollback=counts[number] % 5 == 0):
                    session.execute(MORE.replace("2000", "3").format("shard2.photos").encode())
                    with session.transaction(force_rollback=counts[number] % 2 == 0):
                        session.execute(
                            "UPDATE shard2.photos SET user_id = user_id + 1 WHERE user_id = %s",
                            [number],
                        )
                    session.execute(
                        "DELETE FROM shard3.photos WHERE user_id = %s", [counts[number]]
                    )
                counts[number] += 1

    def beside(*given: Any) -> list[str]:
        before = list(counts)
        wait_for(lambda: all(n > 2 + b for n, b in zip(counts, before, strict=True)), seconds=60)
        return compare(*given)

    monkeypatch.setattr(live_comparison, "compare", beside)
    replace_step(monkeypatch, attempt.STREAM_STEP, lose)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        with pytest.raises(MoveStopped):
            fleet_own.start(planned(fleet_own, [2, 3], "b"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    report = fleet_own.copy("a").report
    assert report is not None
    assert report["rehearsal"]["differing"] == []
    assert min(counts) > 5
    monkeypatch.undo()
    fleet_own.abort()
    assert left(fleet_own) == []


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
    assert "add --terminate" in caught.value.error.hint
    assert [one for one in fleet_own.notices if f"session {pid}" in one]
    monkeypatch.undo()
    fleet_own.put(2)
    writing.rollback()
    fleet_own.resume()
    assert fleet_own.copy("b").state is MoveState.done
