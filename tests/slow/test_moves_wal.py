"""The limit of WAL that a source keeps for a move: reached, with shardctl and without."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.proof import left
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

MOVE = ("move-shards", "2-3", "--to", "b", "--yes", "--max-wal", "8MB", "-o", "json")


def test_a_move_that_reaches_the_limit_aborts_itself(fleet_own: Lab) -> None:
    mover = fleet_own.begun(*MOVE, before="follow", by="SIGSTOP")
    with fleet_own.connect("b") as session:  # the target reads none of what is written
        for (name,) in session.execute("SELECT subname::text FROM pg_subscription").fetchall():
            session.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
    filled = "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, 16000)"
    fleet_own.ask("a", filled, "DROP TABLE filled")
    wait_for(lambda: not fleet_own.ask("a", "SELECT 1 FROM pg_replication_slots"))
    wait_for(lambda: journal.wal_limit(fleet_own.copy("a")))
    mover.send_signal(signal.SIGCONT)
    out, err = mover.communicate()
    assert mover.returncode == 1, err
    assert json.loads(out)["errors"][0]["code"] == "wal_limit_reached"
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.leads("shard2") == "a"
    assert left(fleet_own) == []
