"""Streamed moves to a node whose disk is full, and moves left alone whose source's WAL is bounded.

The clone or stream's slot holds back what clients write, more than the small disk has room for.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.moves import doctor
from shardctl.moves.plan import CLONE, STREAM
from shardctl.state import leash
from shardctl.state.journal import MoveState
from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

ROWS_MB, WAL_MB = 4, 64
METHODS = pytest.mark.parametrize("method", [CLONE, STREAM])
SLOTS = "SELECT slot_name::text FROM pg_replication_slots"


@contextmanager
def on_a_disk(lab: Lab, part: str, size: str, **settings: str) -> Iterator[Path]:
    """Begin with a part of a node's data on a disk of its own, and give that one's place."""
    lab.make()
    data, disk = lab.directory / "nodes" / part, lab.directory / "a disk"
    disk.mkdir()
    with ExitStack() as stack:
        stack.enter_context(small_disk(disk, size))
        shutil.copytree(data, disk / "data")
        shutil.rmtree(data)
        data.symlink_to(disk / "data")
        if (account := accounts.server_account(None)) is not None:
            for path in (disk / "data", *(disk / "data").rglob("*")):
                shutil.chown(path, account, account)
        stack.callback(lab.end)
        lab.begin(**settings)
        yield disk


@pytest.fixture
def tables_disk(fleet_own_bare: Lab) -> Iterator[Path]:
    """Let node b's tables have little room, and give what fills it."""
    quick = {"wal_retrieve_retry_interval": "200ms", "max_wal_size": "8MB", "min_wal_size": "2MB"}
    rows = f"SELECT repeat(md5(n::text), 250) FROM generate_series(1, {ROWS_MB * 128}) AS n"
    with on_a_disk(fleet_own_bare, "b/base", "96m", **quick) as disk:
        with fleet_own_bare.connect("a") as session:
            session.execute("CREATE TABLE shard2.large (id bigserial PRIMARY KEY, text text)")
            session.execute("ALTER TABLE shard2.large ALTER text SET STORAGE EXTERNAL")
            session.execute(f"INSERT INTO shard2.large (text) {rows}".encode())
            session.execute("GRANT ALL ON shard2.large TO app")
        yield disk / "filler"


def fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass


def test_a_target_whose_tables_have_no_room_says_so_and_gets_them_later(
    fleet_own_bare: Lab, tables_disk: Path
) -> None:
    lab = fleet_own_bare
    with Load.start(lab.topology, clients=1, shards=[ShardId(2)]) as load:
        mover = lab.mover("start", "step copy run")
        mover.at("step copy run")
        fill(tables_disk)
        mover.go()
        assert mover.end() == 3, mover.said
        assert any("No space left on device" in line for line in mover.said), mover.said
        tables_disk.unlink()

        mover = lab.mover("resume", "span ping begin")
        mover.at("span ping begin")
        fill(tables_disk)
        with lab.connect("a") as session:
            session.execute(
                "INSERT INTO shard2.large (text) SELECT text FROM shard2.large LIMIT 128"
            )
        mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith("MarkNotSeen: ") for line in mover.said), mover.said
        wait_for_writes(load, 1)
        tables_disk.unlink()

        # The claim may need a page; without room the target claims when there is some.
        mover = lab.mover("resume", "span claim begin")
        mover.at("span claim begin")
        fill(tables_disk)
        mover.go()
        code = mover.end()
        tables_disk.unlink()
        if code != 0:
            assert any("No space left on device" in line for line in mover.said), mover.said
            lab.resume()
        wait_for_writes(load, 1)
        report = load.check()
    assert report.intact, report.as_json()
    assert lab.copy("a").state.closed
    assert lab.leads("shard2") == "b"
    assert "shard2" not in lab.schemas("a")
    assert doctor.left(doctor.look(lab.topology, purpose="test")) == []
    assert [one for one in lab.problems() if "move_unconfirmed" not in one] == []


@pytest.fixture
def tight(fleet_own_bare: Lab) -> Iterator[Lab]:
    """Give a fleet whose node a has its WAL on a disk of its own, with little room."""
    few = {"max_wal_size": "16MB", "min_wal_size": "4MB"}
    with on_a_disk(fleet_own_bare, "a/pg_wal", f"{WAL_MB}m", **few):
        with fleet_own_bare.connect("a") as session:
            session.execute("CREATE TABLE shard0.filled (text text)")
        yield fleet_own_bare


def killed(lab: Lab, method: str) -> str:
    """Leave a move alone that has its slot, and name that."""
    mover = lab.mover("start", "step follow run", method=method)
    mover.at("step follow run")
    mover.kill()
    [(slot,)] = lab.ask("a", SLOTS)
    return str(slot)


def write(lab: Lab, *, every_s: float = 0) -> None:
    """Write more than the disk has room for, as clients who go on: 8 MB at a time."""
    for _ in range(2 * WAL_MB // 8):
        time.sleep(every_s)
        with lab.connect("a") as session:
            session.execute(
                "INSERT INTO shard0.filled SELECT repeat('x', 1000) FROM generate_series(1, 8000)"
            )
            session.execute("TRUNCATE shard0.filled")
            session.execute("CHECKPOINT")


@METHODS
def test_the_disk_of_a_source_does_not_fill_though_shardctl_was_killed(
    tight: Lab, method: str
) -> None:
    killed(tight, method)
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
    tight: Lab, method: str
) -> None:
    slot = killed(tight, method)
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
