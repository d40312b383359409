"""Prune beside others: who uses a schema, who is held up, two at once, kills, the lock table."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from shardctl.fanout import Silent
from shardctl.moves import prune_drop
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.fleets.retired import RETIRED, Pruned
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg
    import pytest

    from shardctl.moves.prune_drop import Retired

READ = f"SELECT FROM {RETIRED}.photos".encode()
SIZE = "SELECT pg_database_size(current_database())"
FULL = "out of shared memory"


# Who is in the way


def test_a_schema_that_a_session_reads_is_named_and_left(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, 3)
    fleet_retired.record()
    with (
        fleet_retired.fleet.connect("a", application_name="report") as session,
        session.transaction(),
    ):
        session.execute(READ)
        pid = session.info.backend_pid
        found = fleet_retired.verdicts()
        done = fleet_retired.prune("--yes")
    named = f"session {pid} (user postgres, application report, idle in transaction, open since "
    assert (found[f"a/{RETIRED}"] or "").startswith(named)
    assert done.returncode == 0
    assert named in done.stdout
    assert fleet_retired.left() == [RETIRED]


# Waiting


def test_it_tries_again_while_somebody_holds_a_lock_for_a_while(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, 3)
    fleet_retired.record()
    chosen = fleet_retired.plan()
    with fleet_retired.fleet.connect("a") as session:
        session.execute("BEGIN")
        session.execute(READ)
        thread = threading.Thread(target=_end_when_left_alone, args=(fleet_retired, session))
        thread.start()
        assert _drop(fleet_retired, chosen) == {}
        thread.join()
    assert fleet_retired.left() == []


def test_readers_get_through_again_and_again_while_prune_waits_for_one(
    fleet_retired: Pruned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is wanted holds up those that come after it, so it is not wanted for long."""
    monkeypatch.setattr(prune_drop, "_PATIENCE_S", 2.0)
    fleet_retired.retire(2)
    fleet_retired.record()
    chosen = fleet_retired.plan()
    waits: list[float] = []
    stop = threading.Event()

    def read() -> None:
        # The server counts only what it waits for a lock, not what a busy machine adds.
        with fleet_retired.fleet.connect("a", options="-c lock_timeout=1s") as reader:
            while not stop.is_set():
                began = time.monotonic()
                reader.execute(READ)
                waits.append(time.monotonic() - began)

    with (
        fleet_retired.fleet.connect("a") as session,
        ThreadPoolExecutor(1) as executor,
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(stop.set)
        session.execute("BEGIN")
        session.execute(READ)
        reading = executor.submit(read)
        _drop(fleet_retired, chosen)
        stop.set()
        reading.result()
    assert sum(wait > 0.02 for wait in waits) > 1


def test_a_server_that_dies_meanwhile_is_named_and_the_rest_is_done_later(
    small: Pruned, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.retire(2, 3)
    small.record()
    chosen = small.plan()
    server = small.fleet.servers["a"]
    drop = prune_drop._transaction

    def meanwhile(*given: Any) -> Any:
        failed = drop(*given)
        server.stop("immediate")
        return failed

    monkeypatch.setattr(prune_drop, "_LARGEST_BATCH", 1)
    monkeypatch.setattr(prune_drop, "_transaction", meanwhile)
    done = small.prune("--yes")
    server.start()
    assert done.returncode == 3
    assert "node a: the connection was lost" in done.stderr
    assert len(chosen) == 2
    assert len(small.left()) == 1
    monkeypatch.undo()
    small.carry_out()
    assert small.left() == []


def test_killed_in_the_middle_it_does_the_rest_when_run_again(fleet_retired: Pruned) -> None:
    fleet_retired.retire_many(60)
    with ended(_start(fleet_retired)):
        wait_for(lambda: len(fleet_retired.left()) < 115)
    wait_for(lambda: _is_unlocked(fleet_retired))
    left = fleet_retired.left()
    assert 0 < len(left) < 120
    tables = "SELECT schemaname::text, count(*) FROM pg_tables GROUP BY 1"
    found = dict(fleet_retired.fleet.query("a", tables))
    assert {found[schema] for schema in left} == {3}
    done = fleet_retired.prune("--yes")
    assert (done.returncode, fleet_retired.left()) == (0, []), done.stderr


# Two at once


# The lock table


def test_a_schema_that_one_transaction_cannot_lock_goes_in_parts(small: Pruned) -> None:
    small.retire(2)
    small.record()
    with small.fleet.connect("a") as session:
        session.execute(f"SET search_path = {RETIRED}".encode())
        session.execute("CREATE TABLE days (day integer PRIMARY KEY) PARTITION BY RANGE (day)")
        for day in range(150):
            add = f"CREATE TABLE d{day} PARTITION OF days FOR VALUES FROM ({day}) TO ({day + 1})"
            session.execute(add.encode())
        session.execute("CREATE TABLE base (n integer PRIMARY KEY, d integer REFERENCES days)")
        for n in range(30):
            session.execute(f"CREATE TABLE heir{n} (t text) INHERITS (base)".encode())
    (one,) = small.plan()
    assert one.objects > 1000
    small.carry_out([one])
    assert small.left() == []
    assert FULL not in small.fleet.servers["a"].log()


def _start(fleet_retired: Pruned) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line(fleet_retired.fleet.write(), "prune", "--yes"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _drop(fleet_retired: Pruned, chosen: Sequence[Retired]) -> dict[Retired, str]:
    """Drop what somebody has begun to use after the last look."""
    with fleet_retired.fleet.connect("a") as session:
        session.execute("SET search_path = pg_catalog")
        return prune_drop.run(session, "a", chosen, Silent())


def _end_when_left_alone(fleet_retired: Pruned, session: psycopg.Connection[Any]) -> None:
    """End a session's transaction when prune has come back for its schema a few times."""
    wait_for(lambda: fleet_retired.left() == [RETIRED])
    time.sleep(0.2)
    session.execute("ROLLBACK")


def _is_unlocked(fleet_retired: Pruned) -> bool:
    return not fleet_retired.fleet.query("a", "SELECT FROM pg_locks WHERE locktype = 'advisory'")
