"""A source that the WAL of a move has filled, and what docs/operations/failures.md does then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres.connection import NodeUnavailable
from shardctl.state import leash
from shardctl.state.journal import MoveState
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

WAL_MB = 64
SLOTS = "SELECT slot_name::text FROM pg_replication_slots"


@pytest.fixture
def tight(fleet_own_bare: Lab) -> Iterator[Lab]:
    """Give a fleet whose node a has its WAL on a disk of its own, with little room."""
    lab = fleet_own_bare
    lab.make()
    wal, disk = lab.directory / "nodes" / "a" / "pg_wal", lab.directory / "a disk"
    disk.mkdir()
    with small_disk(disk, f"{WAL_MB}m"):
        shutil.move(wal, disk / "wal")
        wal.symlink_to(disk / "wal")
        if (account := accounts.server_account(None)) is not None:
            for path in (disk / "wal", *(disk / "wal").rglob("*")):
                shutil.chown(path, account, account)
        lab.begin(max_wal_size="16MB", min_wal_size="4MB")
        yield lab
        lab.end()


def fill(lab: Lab) -> None:
    """Write more than the disk has room for, 8 MB at a time, and keep none of it."""
    for _ in range(2 * WAL_MB // 8):
        with lab.connect("a") as session:
            session.execute(
                "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, 8000)"
            )
            session.execute("DROP TABLE filled")
            session.execute("CHECKPOINT")


def free_by_hand(lab: Lab, slot: str) -> None:
    """Do what the page says, as the user who runs the server."""
    server = lab.server("a")
    page = Path("docs/operations/failures.md").read_text(encoding="utf-8")
    steps = page.partition("as the user who runs the server:\n\n```bash\n")[2].partition("```")[0]
    steps = steps.replace("DATA", str(server.data_directory)).replace("shardctl_MOVE", slot)
    steps = steps[steps.index("rm -r") : steps.index("pg_ctl start")]
    script = f"PATH={server.binaries.directory}:$PATH\nset -eu\n{steps}"
    Local().run(["bash", "-c", script], user=server.account)
    server.start()


def test_it_is_freed_on_its_host_and_the_move_aborted(tight: Lab) -> None:
    words = ("move-shards", "2-3", "--to", "b", "--yes")
    tight.begun(*words, before="follow", by="SIGKILL").communicate()
    [(slot,)] = tight.ask("a", SLOTS)
    with tight.connect("a") as session:
        leash.end(session, slot)  # as a restart of the server does
    before = tight.ask("a", "SELECT count(*) FROM shard2.photos")
    with pytest.raises(psycopg.OperationalError):
        fill(tight)
    wait_for(lambda: not tight.server("a").running())
    with pytest.raises(NodeUnavailable):
        tight.abort()
    free_by_hand(tight, slot)
    assert not tight.ask("a", SLOTS)
    assert tight.ask("a", "SELECT count(*) FROM shard2.photos") == before
    tight.abort()
    assert tight.copy("a").state is MoveState.aborted
    assert tight.problems() == []
