"""A streamed move whose target's disk is full, for its tables or its WAL, and is made larger."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.moves import doctor
from shardctl.moves.plan import Options
from tests.fixtures.moves import streamed
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

ROWS_MB = 4


@dataclass
class Disk:
    """A small disk of node b, and a file that fills it."""

    fleet: Lab
    place: Path
    movers: list[Mover] = field(default_factory=list)

    def fill(self) -> None:
        with (self.place / "filler").open("ab", buffering=0) as file, suppress(OSError):
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def free(self) -> None:
        (self.place / "filler").unlink()

    def mover(self, verb: str, *stops: str) -> Mover:
        options = json.dumps(dataclasses.asdict(Options(max_pause_s=5.0, retain_s=0.0)))
        one = Mover([str(self.fleet.file), verb, options, *stops], program=streamed.__name__)
        self.movers.append(one)
        return one

    def close(self) -> None:
        """End what is at work."""
        for mover in self.movers:
            mover.close()

    def runs(self) -> bool:
        try:
            self.fleet.ask("b", "SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


class Writer:
    """A client of a moved shard that writes row after row, and knows which were acknowledged."""

    def __init__(self, fleet: Lab) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_served()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_served(self) -> None:
        before = len(self.written)
        wait_for(lambda: len(self.written) > before, seconds=60)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with suppress(psycopg.Error):
                self.written.add(self._fleet.put(2))


@contextmanager
def on_a_disk(fleet: Lab, made: Path, part: str, size: str) -> Iterator[Disk]:
    """Give a fleet that has a part of node b's data on a disk of its own."""
    fleet.write()
    fleet.copy_nodes(made)
    more = "16MB, wal_retrieve_retry_interval: 200ms, max_wal_size: 8MB, min_wal_size: 2MB}"
    fleet.file.write_text(fleet.file.read_text().replace("16MB}", more))
    data = fleet.directory / "nodes" / "b" / part
    place = fleet.directory / "disk"
    place.mkdir()
    with ExitStack() as stack:
        stack.enter_context(small_disk(place, size))
        shutil.copytree(data, place / "data")
        shutil.rmtree(data)
        data.symlink_to(place / "data")
        if (account := accounts.server_account(None)) is not None:
            for path in (place / "data", *(place / "data").rglob("*")):
                shutil.chown(path, account, account)
        fleet.up()
        disk = Disk(fleet, place)
        stack.callback(disk.close)
        stack.callback(fleet.end)
        rows = f"SELECT repeat(md5(n::text), 250) FROM generate_series(1, {ROWS_MB * 128}) AS n"
        with fleet.connect("a") as session:
            session.execute("CREATE TABLE shard2.large (id bigserial PRIMARY KEY, text text)")
            session.execute("ALTER TABLE shard2.large ALTER text SET STORAGE EXTERNAL")
            session.execute(f"INSERT INTO shard2.large (text) {rows}".encode())
            session.execute("GRANT ALL ON shard2.large TO app")
        yield disk


@pytest.fixture
def tables_disk(fleet_own_bare: Lab, fleet_own_made: Path) -> Iterator[Disk]:
    with on_a_disk(fleet_own_bare, fleet_own_made, "base", "96m") as made:
        yield made


def write_large(fleet: Lab) -> None:
    with fleet.connect("a") as session:
        session.execute("INSERT INTO shard2.large (text) SELECT text FROM shard2.large LIMIT 128")


def assert_moved(fleet: Lab, writer: Writer) -> None:
    """See that the move is over, and has all rows that were acknowledged."""
    assert fleet.leads("shard2") == "b"
    found = [one for (one,) in fleet.ask("b", "SELECT id FROM shard2.photos")]
    assert len(found) == len(set(found))
    assert writer.written <= set(found)
    assert "shard2" not in fleet.schemas("a")
    assert doctor.left(doctor.look(fleet.topology, purpose="test")) == []
    assert [one for one in fleet.problems() if "move_unconfirmed" not in one] == []


def test_a_target_whose_tables_have_no_room_says_so_and_gets_them_later(tables_disk: Disk) -> None:
    fleet = tables_disk.fleet
    with Writer(fleet) as writer:
        mover = tables_disk.mover("start", "step copy run")
        mover.at("step copy run")
        tables_disk.fill()
        mover.go()
        assert mover.end() == 3, mover.said
        assert any("No space left on device" in line for line in mover.said), mover.said
        tables_disk.free()

        mover = tables_disk.mover("resume", "span ping begin")
        mover.at("span ping begin")
        tables_disk.fill()
        write_large(fleet)
        mover.go()
        assert mover.end() == 3, mover.said
        assert any(line.startswith("MarkNotSeen: ") for line in mover.said), mover.said
        writer.wait_served()
        tables_disk.free()

        # The claim may need a page; without room the target claims when there is some.
        mover = tables_disk.mover("resume", "span claim begin")
        mover.at("span claim begin")
        tables_disk.fill()
        mover.go()
        code = mover.end()
        tables_disk.free()
        if code != 0:
            assert any("No space left on device" in line for line in mover.said), mover.said
            fleet.resume()
        writer.wait_served()
    assert fleet.copy("a").state.closed
    assert_moved(fleet, writer)
