"""A move that is left alone, and the disk of its source: the slot holds back what is written.

The source's WAL is on a small disk. Clients write more than it has room for.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.moves.plan import Options
from shardctl.state import leash
from shardctl.state.journal import MoveState
from tests.fixtures.moves import points, streamed
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

DISK_MB = 64
WRITTEN_MB = 2 * DISK_MB
METHODS = pytest.mark.parametrize(
    "program", [points.__name__, streamed.__name__], ids=["clone", "stream"]
)
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
    tight: Lab, program: str
) -> None:
    killed(tight, "step follow run", program=program)
    assert tight.ask("a", SLOTS)
    write(tight, every_s=1)  # the leash looks twice a second
    wait_for(lambda: not tight.ask("a", SLOTS))
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
    assert tight.problems() == []


def free_by_hand(lab: Lab, slot: str) -> None:
    """Do what docs/operations/failures.md says, as the user who runs the server."""
    server = lab.server("a")
    page = Path("docs/operations/failures.md").read_text(encoding="utf-8")
    steps = page.partition("as the user who runs the server:\n\n```bash\n")[2].partition("```")[0]
    steps = steps.replace("DATA", str(server.data_directory)).replace("shardctl_MOVE", slot)
    steps = steps[steps.index("rm -r") : steps.index("pg_ctl start")]
    script = f"PATH={server.binaries.directory}:$PATH\nset -eu\n{steps}"
    Local().run(["bash", "-c", script], user=server.account)
    server.start()


@METHODS
def test_a_source_that_its_wal_has_filled_is_freed_on_its_host_and_the_move_aborted(
    tight: Lab, program: str
) -> None:
    killed(tight, "step follow run", program=program)
    [(slot,)] = tight.ask("a", SLOTS)
    with tight.connect("a") as session:
        leash.end(session, slot)  # as a restart of the server does
    [(before,)] = tight.ask("a", "SELECT count(*) FROM shard2.photos")
    with pytest.raises(psycopg.OperationalError):
        write(tight)
    wait_for(lambda: not tight.server("a").running())
    with pytest.raises(ShardctlError) as caught:
        tight.abort()
    assert "docs/operations/failures.md" in (caught.value.hint or "")
    free_by_hand(tight, slot)
    assert not tight.ask("a", SLOTS)
    assert tight.ask("a", "SELECT count(*) FROM shard2.photos") == [(before,)]
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
    assert tight.problems() == []
