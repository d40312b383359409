"""Rows that a killed `rows move` left in two shards, and shards that move before it runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fixtures.moves.spares import MovedFleet

ROWS = 30
KILLED = """
import os, signal
from shardctl.maintenance import row_copy
row_copy.BATCH = 20
row_copy.Copying._delete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from shardctl.cli.app import main
main()
"""


def kill_between_commits(fleet: MovedFleet, shard: int) -> None:
    """Let it die when the first 20 rows are in both shards."""
    arguments = ["--topology", str(fleet.write()), "rows", "move", str(shard), "--yes"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments],
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"XDG_STATE_HOME": str(fleet.directory / "state")},
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("source", "target"), [(2, 5), (5, 2)], ids=["the source moves", "the target moves"]
)
def test_the_second_run_finds_the_records_where_the_shards_are_now(
    fleet_spares: MovedFleet, source: int, target: int
) -> None:
    fleet_spares.migration("0002_key.sql", "-- shardctl: key photos.user_id\n")
    fleet_spares.init()
    at = {source: "a" if source < 4 else "b", target: "a" if target < 4 else "b"}
    fleet_spares.execute(
        at[source],
        f"INSERT INTO shard{source}.photos SELECT i, {target} FROM generate_series(1, {ROWS}) i",
    )
    kill_between_commits(fleet_spares, source)
    # What the application does with its rows now must not be undone by the second run.
    fleet_spares.execute(at[target], f"UPDATE shard{target}.photos SET user_id = user_id + 8")
    fleet_spares.execute(at[target], f"DELETE FROM shard{target}.photos WHERE id % 2 = 0")
    changed = dict(fleet_spares.query(at[target], f"SELECT id, user_id FROM shard{target}.photos"))
    assert len(changed) in range(5, 16)
    fleet_spares.move([2, 3], "c")
    at[2] = "c"
    done = fleet_spares.here("rows", "move", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_spares.query(at[source], f"SELECT FROM shard{source}.photos") == []
    rows = dict(fleet_spares.query(at[target], f"SELECT id, user_id FROM shard{target}.photos"))
    assert {number: user for number, user in rows.items() if number in changed} == changed
    # Ten were not copied before the kill; those that were copied and deleted stay deleted.
    assert len(rows) == len(changed) + ROWS - 20
    assert fleet_spares.query(at[target], "SELECT count(*) FROM shardctl.row_copy") == [(0,)]
