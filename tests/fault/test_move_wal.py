"""A move that is left alone, and the disk of its source: the slot holds back what is written.

The source's WAL is on a small disk. Clients write more than it has room for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.moves import rescue
from shardctl.moves.plan import Options
from shardctl.state import leash
from shardctl.state.journal import MoveState
from shardctl.state.move_objects import move_of
from tests.fixtures.moves import clone_streamed, points, streamed
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.moves.own import answers
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

DISK_MB = 64
WRITTEN_MB = 2 * DISK_MB
METHODS = pytest.mark.parametrize(
    ("program", "point"),
    [
        pytest.param(points.__name__, "step follow run", id="clone"),
        pytest.param(streamed.__name__, "step follow run", id="stream"),
        pytest.param(clone_streamed.__name__, "step follow run", id="clone-stream"),
        pytest.param(clone_streamed.__name__, "step promote run", id="clone-stream-early"),
        pytest.param(clone_streamed.__name__, clone_streamed.BRANCHED, id="clone-stream-both"),
    ],
)
"""A clone that hands over by stream has one slot, then two, then the other one."""
SLOTS = "SELECT slot_name::text FROM pg_replication_slots"


@pytest.fixture
def tight(fleet_own_bare: Lab, fleet_own_made: Path) -> Iterator[Lab]:
    """Give a fleet whose node a has its WAL on a disk of its own, with little room."""
    lab = fleet_own_bare
    lab.write()
    lab.copy_nodes(fleet_own_made)
    wal = lab.directory / "nodes" / "a" / "pg_wal"
    disk = lab.directory / "wal of a"
    disk.mkdir()
    with ExitStack() as stack:
        stack.enter_context(small_disk(disk, f"{DISK_MB}m"))
        shutil.copytree(wal, disk / "wal")
        shutil.rmtree(wal)
        wal.symlink_to(disk / "wal")
        if (account := accounts.server_account(None)) is not None:
            for path in (disk / "wal", *(disk / "wal").rglob("*")):
                shutil.chown(path, account, account)
        lab.init()
        with lab.connect("a") as session:
            session.execute("ALTER SYSTEM SET max_wal_size = '16MB'")
            session.execute("ALTER SYSTEM SET min_wal_size = '4MB'")
            session.execute("SELECT pg_reload_conf()")
            session.execute("CREATE TABLE shard0.filled (text text)")
        yield lab
        lab.end()


def killed(lab: Lab, point: str, *, program: str = points.__name__) -> None:
    """Begin a move in a process that is killed at a point."""
    options = json.dumps(dataclasses.asdict(Options(max_pause_s=5.0, retain_s=0.0)))
    mover = Mover([str(lab.file), "start", options, point], program=program)
    mover.at(point)
    mover.kill()


def write(lab: Lab, *, every_s: float = 0) -> None:
    """Write more than the disk has room for, as clients who go on: 8 MB at a time."""
    for _ in range(WRITTEN_MB // 8):
        time.sleep(every_s)
        with lab.connect("a") as session:
            session.execute(
                "INSERT INTO shard0.filled SELECT repeat('x', 1000) FROM generate_series(1, 8000)"
            )
            session.execute("TRUNCATE shard0.filled")
            session.execute("CHECKPOINT")


@METHODS
def test_the_disk_of_a_source_does_not_fill_though_shardctl_was_killed(
    tight: Lab, program: str, point: str
) -> None:
    killed(tight, point, program=program)
    assert tight.ask("a", SLOTS)
    write(tight, every_s=1)  # the leash looks twice a second
    wait_for(lambda: not tight.ask("a", SLOTS))
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
    assert tight.problems() == []


@METHODS
def test_a_source_that_its_wal_has_filled_is_freed_on_its_host_and_the_move_aborted(
    tight: Lab, program: str, point: str
) -> None:
    killed(tight, point, program=program)
    slots = [slot for (slot,) in tight.ask("a", SLOTS)]
    assert len(slots) == (2 if point == clone_streamed.BRANCHED else 1)
    with tight.connect("a") as session:
        for slot in slots:
            leash.end(session, slot)  # as a restart of the server does
    [(before,)] = tight.ask("a", "SELECT count(*) FROM shard2.photos")
    with pytest.raises(psycopg.OperationalError):
        write(tight)
    wait_for(lambda: not tight.server("a").running())
    with pytest.raises(ShardctlError) as caught:
        tight.abort()
    assert "moves abort MOVE --restart-source a" in (caught.value.hint or "")

    planned = rescue.look(tight.topology, "a", None, purpose="test")
    assert planned.move == move_of(slots[0])
    assert planned.slots == tuple(sorted(slots))
    rescue.carry_out(planned)
    assert not tight.ask("a", SLOTS)
    assert tight.ask("a", "SELECT count(*) FROM shard2.photos") == [(before,)]
    with raises_code("source_serves"):
        rescue.look(tight.topology, "a", None, purpose="test")
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
    assert tight.problems() == []


def test_a_source_that_serves_and_refuses_this_login_only_is_not_stopped(tight: Lab) -> None:
    killed(tight, "step follow run")
    rules = tight.directory / "nodes" / "a" / "pg_hba.conf"
    before = rules.read_text()
    with tight.connect("a") as session:
        rules.write_text(f"host all postgres 127.0.0.1/32 reject\n{before}")
        session.execute("SELECT pg_reload_conf()")
    serving = tight.server("a").running()
    assert serving is not None
    with raises_code("source_serves", match=r"answers: pg_hba\.conf rejects"):
        rescue.look(tight.topology, "a", None, purpose="test")
    assert tight.server("a").running() == serving
    rules.write_text(before)
    os.kill(serving.pid, signal.SIGHUP)
    wait_for(lambda: answers(tight, "a"))
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
