"""`rows move` is killed at every point, and runs beside writers: no row is lost or double."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from tests.fixtures.fleets.fleet import Fleet

pytestmark = pytest.mark.fault

ROWS = 30
"""Three batches of ten; the second is broken off."""

POINTS = {
    "before the copy": ("_copy", "True"),
    "before the copy commits": ("_event", "arguments[1] == 'copied'"),
    "between the commits": ("_delete", "True"),
    "before the originals are gone": ("_event", "arguments[1] == 'deleted'"),
    "before the copies are forgotten": ("_settle", "True"),
}
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
TERMINATE = (
    "psycopg.connect(self._target.info.dsn, autocommit=True).execute("
    "'SELECT pg_terminate_backend(%s)', [self.{}.info.backend_pid])"
)
CODE = """
import os, signal, psycopg
from shardctl.maintenance import row_copy
row_copy.BATCH = 10
original, seen = row_copy.Copying.{method}, []
def broken(self, *arguments):
    if {condition}:
        seen.append(1)
        if len(seen) == 2:
            {do}
    return original(self, *arguments)
row_copy.Copying.{method} = broken
from shardctl.cli.app import main
main()
"""


@pytest.fixture
def fleet(fleet_8: Fleet) -> Fleet:
    fleet_8.migration("0002_key.sql", "-- shardctl: key photos.user_id\n")
    fleet_8.init()
    return fleet_8


def broken_off(fleet: Fleet, point: str, do: str = KILL) -> subprocess.CompletedProcess[str]:
    method, condition = POINTS[point]
    code = CODE.format(method=method, condition=condition, do=do)
    arguments = ["--topology", str(fleet.write()), "rows", "move", "--yes"]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"XDG_STATE_HOME": str(fleet.directory / "state")},
    )


def photos(fleet: Fleet) -> list[tuple[int, int, int]]:
    """Give id, user and shard of every photo."""
    return sorted(
        (number, user, shard)
        for shard in range(8)
        for number, user in fleet.query(
            "a" if shard < 4 else "b", f"SELECT id, user_id FROM shard{shard}.photos"
        )
    )


def copies(fleet: Fleet, node: str) -> int:
    [(count,)] = fleet.query(node, "SELECT count(*) FROM shardctl.row_copy")
    return int(count)


@pytest.mark.parametrize("right", [3, 5], ids=["one node", "two nodes"])
@pytest.mark.parametrize("point", POINTS)
def test_a_second_run_ends_what_a_killed_one_began(fleet: Fleet, point: str, right: int) -> None:
    fleet.execute(
        "a", f"INSERT INTO shard2.photos SELECT i, {right} FROM generate_series(1, {ROWS}) i"
    )
    assert broken_off(fleet, point).returncode == -9
    between = photos(fleet)
    assert {number for number, _, _ in between} == set(range(1, ROWS + 1))
    double = len(between) - ROWS
    assert double == (
        10 if point in ("between the commits", "before the originals are gone") else 0
    )
    done = fleet.here("rows", "move", "--yes")
    assert done.returncode == 0, done.stderr
    assert photos(fleet) == [(number, right, right) for number in range(1, ROWS + 1)]
    assert copies(fleet, "a" if right < 4 else "b") == 0


@pytest.mark.parametrize("session", ["_source", "_target"])
@pytest.mark.parametrize("point", POINTS)
def test_a_lost_session_loses_no_row(fleet: Fleet, point: str, session: str) -> None:
    fleet.execute("a", f"INSERT INTO shard2.photos SELECT i, 3 FROM generate_series(1, {ROWS}) i")
    done = broken_off(fleet, point, TERMINATE.format(session))
    assert done.returncode == 3, done.stderr
    assert "the connection was lost" in done.stderr
    assert {number for number, _, _ in photos(fleet)} == set(range(1, ROWS + 1))
    assert fleet.here("rows", "move", "--yes").returncode == 0
    assert photos(fleet) == [(number, 3, 3) for number in range(1, ROWS + 1)]


def test_an_interrupted_run_says_how_to_go_on(fleet: Fleet) -> None:
    fleet.execute("a", f"INSERT INTO shard2.photos SELECT i, 3 FROM generate_series(1, {ROWS}) i")
    done = broken_off(fleet, "between the commits", "raise KeyboardInterrupt")
    assert done.returncode == 130
    assert "run `shardctl rows move` again" in done.stderr
    assert fleet.here("rows", "move", "--yes").returncode == 0
    assert photos(fleet) == [(number, 3, 3) for number in range(1, ROWS + 1)]


def test_what_an_application_did_with_copies_before_the_second_run_stays(fleet: Fleet) -> None:
    fleet.execute("a", f"INSERT INTO shard2.photos SELECT i, 5 FROM generate_series(1, {ROWS}) i")
    assert broken_off(fleet, "between the commits").returncode == -9
    # These ten are in both shards.
    twice = [n for (n,) in fleet.query("b", "SELECT id FROM shard5.photos")
             if fleet.query("a", f"SELECT FROM shard2.photos WHERE id = {n}")]  # fmt: skip
    assert len(twice) == 10
    changed, deleted, differs = twice[:3]
    fleet.execute("b", f"UPDATE shard5.photos SET user_id = 13 WHERE id = {changed}")
    fleet.execute("b", f"DELETE FROM shard5.photos WHERE id = {deleted}")
    fleet.execute("a", f"UPDATE shard2.photos SET user_id = 21 WHERE id = {differs}")
    done = fleet.here("rows", "move", "--yes")
    assert done.returncode == 3
    assert f"primary key {differs}: shard 5 has a different row with this key" in done.stderr
    there = photos(fleet)
    assert (changed, 13, 5) in there
    assert not [row for row in there if row[0] == deleted]
    assert [row for row in there if row[0] == differs] == [(differs, 5, 5), (differs, 21, 2)]
    assert len(there) == ROWS
    # Neither of both is lost: the operator decides.
    fleet.execute("b", f"DELETE FROM shard5.photos WHERE id = {differs}")
    assert fleet.here("rows", "move", "--yes").returncode == 0
    assert (differs, 21, 5) in photos(fleet)


SECONDS = 10.0


class Client:
    """Writes rows into wrong shards, and deletes some of its own there, until it is stopped."""

    def __init__(self, fleet: Fleet, seed: int, stop: threading.Event) -> None:
        self.fleet, self.stop = fleet, stop
        self.random = random.Random(seed)  # noqa: S311  # a load, no secret
        self.expected: dict[int, int] = {}

    def run(self) -> None:
        with self.fleet.connect("a") as a, self.fleet.connect("b") as b:
            own: list[tuple[int, int]] = []
            # Paced: the moves between which rows change are what is tested.
            while not self.stop.wait(0.02):
                shard = self.random.randrange(8)
                session = a if shard < 4 else b
                key = self.random.randrange(1000)
                statement = f"INSERT INTO shard{shard}.photos (user_id) VALUES (%s) RETURNING id"
                [(number,)] = session.execute(statement.encode(), (key,)).fetchall()
                self.expected[number] = key
                own.append((shard, number))
                if self.random.random() < 0.3:
                    self.change(a, b, *own.pop(self.random.randrange(len(own))))

    def change(
        self, a: psycopg.Connection[Any], b: psycopg.Connection[Any], shard: int, number: int
    ) -> None:
        """Delete a row, or give it another key; what meets no row has been moved away."""
        session = a if shard < 4 else b
        if self.random.random() < 0.5:
            statement = f"DELETE FROM shard{shard}.photos WHERE id = %s"
            if session.execute(statement.encode(), (number,)).rowcount:
                del self.expected[number]
            return
        key = self.random.randrange(1000)
        statement = f"UPDATE shard{shard}.photos SET user_id = %s WHERE id = %s"
        if session.execute(statement.encode(), (key, number)).rowcount:
            self.expected[number] = key


def test_rows_move_beside_writers_who_insert_change_and_delete_them(fleet: Fleet) -> None:
    stop = threading.Event()
    clients = [Client(fleet, seed, stop) for seed in range(8)]
    codes: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(client.run) for client in clients]
        try:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline or len(codes) < 2:
                codes.append(fleet.here("rows", "move", "--yes").returncode)
        finally:
            stop.set()
        for one in running:
            one.result()
    # 3: rows that were in use are left for the next run.
    assert set(codes) <= {0, 1, 3}
    done = fleet.here("rows", "move", "--yes")
    assert done.returncode == 0, done.stderr
    expected: dict[int, int] = {}
    for client in clients:
        expected |= client.expected
    assert len(expected) > 300
    assert photos(fleet) == sorted((n, key, key % 8) for n, key in expected.items())
