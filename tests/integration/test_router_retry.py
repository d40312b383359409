"""The table of docs/router.md on what may be tried again: each row is provoked on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from shardctl.router import AsyncShardedDatabase, PoolSettings
from tests.fixtures import breaking
from tests.fixtures.fleets.routed import away, fill, moved_by_hand
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Face, Open

PAGE = Path(__file__).parents[2] / "docs/router.md"
POOL = PoolSettings(max_size=2, timeout=20)
INSERT = "INSERT INTO photos (id, user_id) VALUES (999, 9)"


class Scene:
    """A fleet on which something goes wrong while a face of the router is used."""

    def __init__(self, fleet: Fleet, router: Open) -> None:
        self.fleet = fleet
        self.open = router
        fill(fleet, 2)

    def db(self, **options: Any) -> Face:
        return self.open(self.fleet.topology(), **({"pool": POOL} | options))

    def moved(self, shard: int) -> Face:
        """Give a router whose map is older than a move."""
        db = self.db()
        with moved_by_hand(self.fleet, shard, "a", "b"):
            pass
        return db

    def cut(self, db: Face, call: Callable[[], Any], shard: int = 3) -> Any:
        """End the server's session under a call that sleeps there; give what it returns."""
        told: list[Any] = []

        def work() -> None:
            try:
                told.append(call())
            except Exception as error:  # noqa: BLE001  # the table tells which it has to be
                told.append(error)

        thread = threading.Thread(target=work)
        with self.fleet.connect("a") as holding:
            holding.execute("SELECT pg_advisory_lock(%s)", [shard])
            thread.start()
            waits = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
            wait_for(lambda: self.fleet.query("a", waits))
            ((pid,),) = self.fleet.query("a", waits)
            self.fleet.execute("a", f"SELECT pg_terminate_backend({pid}, 5000)")
            holding.execute("SELECT pg_advisory_unlock(%s)", [shard])
            thread.join(60)
        assert db.stats() is not None
        if isinstance(told[0], Exception):
            raise told[0]
        return told[0]


LOCK = "pg_advisory_xact_lock_shared(3)"
LOCKED: Any = sql.SQL("pg_catalog." + LOCK)


def moved_call(scene: Scene) -> None:
    db = scene.moved(0)
    assert db.insert("photos", 0, {"id": 5, "user_id": 0}) == 5


def moved_block(scene: Scene) -> None:
    scene.moved(1).within(1, INSERT)


def moved_run(scene: Scene) -> None:
    assert scene.moved(2).ran(2, INSERT, "SELECT id FROM photos") == [(999,)]


def fenced(scene: Scene) -> None:
    db = scene.db(patience=0.1)
    with away(scene.fleet, 3, "a"), pytest.raises(psycopg.Error) as told:
        db.insert("photos", 3, {"user_id": 3})
    raise told.value


def lost_read(scene: Scene) -> None:
    db = scene.db()
    found = scene.cut(db, lambda: db.select(["id", LOCKED], "photos", 3, "id = 1"))
    assert found == [(1, "")]


def lost_write(scene: Scene) -> None:
    db = scene.db()
    values = {"caption": "x"}
    where = "id = 1 AND pg_catalog." + LOCK + " IS NOT NULL"
    scene.cut(db, lambda: db.update("photos", 3, values, where))


def lost_block(scene: Scene) -> None:
    db = scene.db()
    scene.cut(db, lambda: db.within(3, INSERT, f"SELECT {LOCK}"))


def lost_run(scene: Scene) -> None:
    db = scene.db()
    found = scene.cut(db, lambda: db.ran(3, INSERT, f"SELECT {LOCK}", "SELECT 1"))
    assert found == [(1,)]
    assert db.delete("photos", 3, "id = 999") == 1


def lost_commit(scene: Scene) -> None:
    with breaking.at_commit(scene.fleet, "a", done=True) as topology:
        scene.open(topology, pool=POOL).ran(3, INSERT)


def node_down(scene: Scene) -> None:
    # Nothing listens on the port of node a.
    with breaking.at_commit(scene.fleet, "a", done=False) as topology:
        pass
    scene.open(topology, pool=PoolSettings(timeout=0.2)).select("id", "photos", 3)


def pool_empty(scene: Scene) -> None:
    pool = PoolSettings(max_size=1, timeout=0.2)
    db = scene.db(pool=pool)
    held = threading.Thread(target=lambda: db.select(LOCKED, "photos", 3, "id = 1"))
    with scene.fleet.connect("a") as holding:
        holding.execute("SELECT pg_advisory_lock(3)")
        held.start()
        waits = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        wait_for(lambda: scene.fleet.query("a", waits))
        try:
            db.select("id", "photos", 3)
        finally:
            holding.execute("SELECT pg_advisory_unlock(3)")
            held.join(60)


def part_inserted(scene: Scene) -> None:
    rows = [(key, {"id": 500, "user_id": key}) for key in (3, 6)]
    with breaking.at_commit(scene.fleet, "a", done=False) as topology:
        scene.open(topology, pool=POOL).insert_many("photos", rows)


def conflict(scene: Scene) -> None:
    scene.db().insert("photos", 3, {"id": 1, "user_id": 3})


def deadlock(scene: Scene) -> None:
    db = scene.db()
    with scene.fleet.connect("a") as other, other.transaction():
        other.execute("SET LOCAL deadlock_timeout = '1min'")  # the other one is ended
        other.execute("SELECT FROM shard3.photos WHERE id = 1 FOR UPDATE")
        back = threading.Thread(
            target=lambda: other.execute("SELECT FROM shard3.photos WHERE id = 2 FOR UPDATE")
        )

        def begin(_: Any) -> None:
            back.start()
            waits = "SELECT FROM pg_locks WHERE NOT granted"
            wait_for(lambda: scene.fleet.query("a", waits))

        try:
            lock = "SELECT FROM photos WHERE id = {} FOR UPDATE"
            db.ran(3, lock.format(2), begin, lock.format(1))
        finally:
            back.join(60)


def hidden(scene: Scene) -> None:
    def fail(connection: Any) -> None:
        # A statement fails whose error work does not let out; on both faces alike.
        connection.pgconn.exec_(b"SELECT 1 / 0")

    scene.db().ran(3, INSERT, fail)


def late(scene: Scene) -> None:
    slow: Any = sql.SQL("pg_sleep(20)")
    scene.db().scatter(slow, "photos", deadline=0.2)


def cancelled(scene: Scene) -> None:
    async def work() -> None:
        async with AsyncShardedDatabase(scene.fleet.topology(), pool=POOL) as db:
            task = asyncio.create_task(db.run(3, sleep))
            waits = "SELECT FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(20)'"
            await asyncio.to_thread(wait_for, lambda: scene.fleet.query("a", waits))
            task.cancel()
            await task

    async def sleep(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT pg_sleep(20)")

    asyncio.run(work())


PROVOKED: dict[str, Callable[[Scene], None]] = {
    "The shard has moved: any call but `shard`": moved_call,
    "The shard has moved: `shard`": moved_block,
    "The shard has moved: `run`": moved_run,
    "The shard is fenced for longer than `patience`": fenced,
    "The connection is lost: `select`, `fetch_many`, `select_many`": lost_read,
    "The connection is lost: `insert`, `update`, `delete`": lost_write,
    "The connection is lost before COMMIT: `shard`": lost_block,
    "The connection is lost before COMMIT: `run`": lost_run,
    "The connection is lost in COMMIT: `shard`, `run`": lost_commit,
    "A node cannot be reached for `timeout`": node_down,
    "All connections of the pool are in use for `timeout`": pool_empty,
    "Some nodes fail in `insert_many`": part_inserted,
    "A unique index has the row": conflict,
    "Two transactions wait for each other": deadlock,
    "A statement failed in `run`, and `work` returned": hidden,
    "A `deadline` has passed": late,
    "A task was cancelled": cancelled,
}


def table() -> dict[str, tuple[str | None, str]]:
    """Read the table: each event, the exception that comes, and what it says of a retry."""
    text = PAGE.read_text().partition("<!-- tested: retry -->\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    found = {}
    for event, exception, retry in rows[2:]:
        name = re.match(r"`(\w+)`", exception)
        found[event] = (name[1] if name else None, retry)
    return found


def test_every_row_has_its_test() -> None:
    assert list(table()) == list(PROVOKED)
    for name, retry in table().values():
        assert retry.startswith(("yes", "no")), retry
        assert (name is None) == retry.startswith("no need")


def test_each_row_is_true(fleet_routed: Fleet, router: Open) -> None:
    scene = Scene(fleet_routed, router)
    wrong = []
    for event, (name, _) in table().items():
        came, error = None, None
        try:
            PROVOKED[event](scene)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  # is what the table says
            error = raised
            came = {one.__name__ for one in type(error).__mro__}
        if (name is not None and name not in (came or ())) or (name is None and came):
            wrong.append((event, name, came, repr(error)))
        with contextlib.suppress(psycopg.Error):
            fleet_routed.execute("a", "DELETE FROM shard3.photos WHERE id > 2")
    assert not wrong, wrong
