"""A rollout whose command is killed: at each border of a wave, inside one, between statements."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

LIKES = "0002_likes.sql"
WAVES = ("--waves", "10%,50%,100%", "--soak", "0s")
WRITES = 6
"""Each of three waves is written when it begins and when it is over."""

DYING = """
import os, signal, sys
from shardctl.cli import app
from shardctl.rollout import record
from shardctl.state import rollouts

left, where = int(sys.argv.pop(1)), sys.argv.pop(1)
write_all, write_one = record.write, rollouts.write

def all_nodes(locks, rollout):
    global left
    left -= 1
    if left < 0 and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    lost = write_all(locks, rollout)
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return lost

def one_node(session, rollout):
    write_one(session, rollout)
    if left < 0 and where == "between":
        os.kill(os.getpid(), signal.SIGKILL)

record.write, rollouts.write = all_nodes, one_node
app.main()
"""


def having(one: Fleet) -> list[int]:
    return [
        shard
        for node, shards in (("a", range(4)), ("b", range(4, 8)))
        for shard in shards
        if one.query(node, f"SELECT to_regclass('shard{shard}.likes') IS NOT NULL") == [(True,)]
    ]


def argv(one: Fleet, *words: str) -> list[str]:
    given = ["--topology", str(one.write()), "--yes", "migrate", *words]
    return [sys.executable, "-m", "shardctl", *given]


def known(one: Fleet) -> Any:
    done = one.here("migrate", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free(one: Fleet) -> None:
    """Wait until the killed command's sessions have ended, and with them its locks."""
    ours = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'shardctl migrate%'"
        " AND datname = current_database()"
    )
    wait_for(lambda: all(one.query(node, ours) == [(0,)] for node in "ab"))


def finish(one: Fleet) -> None:
    """Finish it as an operator does who sees its state, and prove that every shard has it once."""
    free(one)
    before = known(one)
    rollouts = [r for r in before["rollouts"] if r["state"] in ("running", "waiting", "stopped")]
    if rollouts:
        refused = one.here("migrate")
        # A killed last wave may have left nothing pending.
        assert refused.returncode == (0 if having(one) == [*range(8)] else 1), refused.stderr
        words = ["--continue"]
    else:
        words = list(WAVES)
    done = one.here("migrate", *words)
    assert done.returncode == 0, done.stderr
    assert having(one) == [*range(8)]
    after = known(one)
    assert all(r["state"] == "done" for r in after["rollouts"])
    assert {f["state"] for f in after["migrations"]} == {"done"}
    for node in "ab":
        ran = f"SELECT count(*) FROM shardctl.migration WHERE file = '{LIKES}'"
        assert one.query(node, ran) == [(4,)]
    assert one.plan().changes() == []


@pytest.mark.parametrize("where", ["before", "between", "after"])
@pytest.mark.parametrize("write", range(WRITES))
def test_killed_at_the_border_of_a_wave(fleet_8: Fleet, write: int, where: str) -> None:
    fleet_8.migration(LIKES, "CREATE TABLE likes (id bigint);")
    given = argv(fleet_8, *WAVES)
    dying = [sys.executable, "-c", DYING, str(write), where, *given[3:]]
    done = subprocess.run(dying, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    finish(fleet_8)


@pytest.mark.parametrize("shard", [4, 5, 7])
def test_killed_inside_a_wave(fleet_8: Fleet, shard: int) -> None:
    fleet_8.migration(LIKES, "ALTER TABLE photos ADD COLUMN n int; CREATE TABLE likes (n int);")
    with fleet_8.connect("b", autocommit=False) as holder, fleet_8.connect("b") as watcher:
        holder.execute(f"LOCK TABLE shard{shard}.photos IN ACCESS SHARE MODE")
        waits = (
            "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with ended(subprocess.Popen([*argv(fleet_8, *WAVES), "--lock-timeout", "1m"])) as running:
            wait_for(lambda: watcher.execute(waits).fetchone() == (True,))
            os.kill(running.pid, signal.SIGKILL)
            running.wait(timeout=30)
        holder.rollback()
    finish(fleet_8)


@pytest.mark.parametrize("completes", [True, False])
def test_killed_while_an_index_is_built_concurrently(fleet_8: Fleet, *, completes: bool) -> None:
    fleet_8.migration(
        LIKES,
        "-- shardctl: no-transaction\n"
        "CREATE TABLE likes (n int);\n"
        "CREATE INDEX CONCURRENTLY by_user ON photos (user_id);\n"
        "CREATE INDEX CONCURRENTLY by_both ON photos (user_id, id);\n",
    )
    building = (
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%by_user%' AND wait_event_type = 'Lock'"
        " AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    with fleet_8.connect("b", autocommit=False) as old, fleet_8.connect("b") as watcher:
        old.execute("INSERT INTO shard7.photos (user_id) VALUES (1)")
        with ended(subprocess.Popen(argv(fleet_8, "--jobs", "1"))) as running:
            wait_for(lambda: watcher.execute(building.encode()).fetchall())
            os.kill(running.pid, signal.SIGKILL)
            running.wait(timeout=30)
        if not completes:
            watcher.execute(f"SELECT pg_terminate_backend(pid) FROM ({building}) AS b".encode())
            wait_for(lambda: not watcher.execute(building.encode()).fetchall())
        old.rollback()
    done = fleet_8.here("migrate")
    assert done.returncode == 0, done.stderr
    assert fleet_8.plan().changes() == []
    for node in "ab":
        valid = (
            "SELECT count(*), bool_and(indisvalid) FROM pg_index"
            " WHERE indexrelid::regclass::text ~ 'by_(user|both)'"
        )
        assert fleet_8.query(node, valid) == [(8, True)]
        assert fleet_8.query(node, "SELECT count(*) FROM shardctl.migration_begun") == [(0,)]
