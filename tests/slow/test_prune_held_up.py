"""Prune beside others: who uses a schema, who is held up, two at once, kills, the lock table."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from shardctl.fanout import Silent
from shardctl.moves import prune_drop
from tests.fixtures.fleets.retired import RETIRED, Pruned
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from shardctl.moves.prune_drop import Retired

READ = f"SELECT FROM {RETIRED}.photos".encode()
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
