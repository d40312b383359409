"""What the router costs an application: against plain psycopg, and against SQL by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.router import AsyncShardedDatabase, PoolSettings, ShardedDatabase
from shardctl.router.bounded import is_quiet
from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, milliseconds, per

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale, Side

SHARDS = 64
CLIENTS = 100
TOP = 30
IDS = 300
FOLLOWEES, NODES = 50, 12


def one_row(scale: Scale) -> list[Row]:  # noqa: C901  # its sides share what they run on
    """Time one-row inserts and selects through the router against psycopg on the same pool.

    Fair: the other side uses the pools that the router has opened, in autocommit as it does,
    with statements that it need not compose, of the same shards in the same order, so that
    psycopg prepares as much for either.
    """
    count = scale.of(300, 20)
    with _database(2) as (running, topology, db):
        _fill(running, topology, 1_000)
        running.settle()
        keys = [random.Random(n).randrange(SHARDS) for n in range(count)]  # noqa: S311  # no secret
        pools: dict[int, Any] = {key: _pool(db, key) for key in range(SHARDS)}

        def inserting() -> float:
            began = time.perf_counter()
            for key in keys:
                db.insert("photos_by_user", key, {"user_id": key, "image_url": "/1.jpg"})
            return time.perf_counter() - began

        def inserting_plainly() -> float:
            began = time.perf_counter()
            for key in keys:
                with pools[key].connection() as connection:
                    connection.execute(
                        f"INSERT INTO shard{key}.photos_by_user (user_id, image_url)"
                        " VALUES (%s, %s) RETURNING id".encode(),
                        (key, "/1.jpg"),
                    ).fetchone()
            return time.perf_counter() - began

        def selecting() -> float:
            began = time.perf_counter()
            for key in keys:
                db.select(["id", "caption"], "bench_photos", key, "id = %s", [key])
            return time.perf_counter() - began

        def selecting_plainly() -> float:
            began = time.perf_counter()
            for key in keys:
                with pools[key].connection() as connection:
                    connection.execute(
                        f"SELECT id, caption FROM shard{key}.bench_photos WHERE id = %s".encode(),
                        [key],
                    ).fetchall()
            return time.perf_counter() - began

        rows = []
        for what, sides in {
            "insert": {"ours": inserting, "plain": inserting_plainly},
            "select": {"ours": selecting, "plain": selecting_plainly},
        }.items():
            for side in sides.values():
                side()
            times = alternate(sides, scale.of(41, 2))
            rows.append(
                compare(
                    f"router: one-row {what}",
                    times["ours"],
                    times["plain"],
                    against="psycopg",
                    shown=per(count, "row"),
                    target=1.15,
                )
            )
        return rows


def looks(scale: Scale) -> list[Row]:
    """Look whether a connection has ended before it is used, against what else could find out."""
    count = scale.of(300, 20)
    with _database(1) as (running, topology, db):
        _fill(running, topology, 1_000)
        running.settle()
        with _pool(db, 0).connection() as connection:

            def looking() -> float:
                began = time.perf_counter()
                for _ in range(count):
                    _require(is_quiet(connection))
                return time.perf_counter() - began

            def asking() -> float:
                began = time.perf_counter()
                for _ in range(count):
                    connection.execute("")
                return time.perf_counter() - began

            def selecting() -> float:
                began = time.perf_counter()
                for number in range(count):
                    connection.execute(
                        "SELECT id, caption FROM shard0.bench_photos WHERE id = %s", [number]
                    ).fetchall()
                return time.perf_counter() - began

            sides = {"looking": looking, "asking": asking, "selecting": selecting}
            for side in sides.values():
                side()
            times = alternate(sides, scale.of(41, 2))
        return [
            compare(
                "router: a look at a connection before its use",
                times["looking"],
                times["selecting"],
                against="a one-row select",
                shown=per(count, "look"),
                target=0.05,
            ),
            compare(
                "  an empty statement instead",
                times["asking"],
                times["selecting"],
                against="a one-row select",
                shown=per(count, "question"),
            ),
        ]


def many_ids(scale: Scale) -> list[Row]:
    """Fetch 300 rows by id from 64 shards: against single selects, and against hand-written SQL.

    By hand means what a careful application would do: group, write one UNION ALL a node, run
    both at once in threads that are there already, put the rows in order.
    """
    with _database(2) as (running, topology, db), ThreadPoolExecutor(2) as threads:
        _fill(running, topology, 1_000)
        running.settle()
        drawn = random.Random(1)  # noqa: S311  # no secret
        wanted = [(drawn.randrange(SHARDS), drawn.randrange(1_000)) for _ in range(IDS)]
        pools = {key: _pool(db, key) for key in range(SHARDS)}

        def ours() -> float:
            began = time.perf_counter()
            found = db.fetch_many(["id", "caption"], "bench_photos", wanted)
            took = time.perf_counter() - began
            _require(len(found) == IDS and None not in found)
            return took

        def singly() -> float:
            began = time.perf_counter()
            for key, number in wanted:
                db.select(["id", "caption"], "bench_photos", key, "id = %s", [number])
            return time.perf_counter() - began

        def by_hand() -> float:
            began = time.perf_counter()
            found = _by_hand(wanted, pools, threads)
            took = time.perf_counter() - began
            _require(len(found) == IDS and None not in found)
            return took

        sides = {"ours": ours, "singly": singly, "by hand": by_hand}
        for side in sides.values():
            side()
        times = alternate(sides, scale.of(41, 2))
        return [
            compare(
                f"router: {IDS} ids over {SHARDS} shards, fetch_many",
                times["ours"],
                times["singly"],
                against="single selects",
                shown=milliseconds,
                target=0.35,
            ),
            compare(
                "  the same",
                times["ours"],
                times["by hand"],
                against="UNION ALL by hand",
                shown=milliseconds,
                target=1.2,
            ),
        ]


def many_keys(scale: Scale) -> list[Row]:
    """Read the newest rows of 50 followees on 12 nodes, against 50 selects of the router's.

    Fair: both give the same rows, 10 of each followee by id, through the same pools; every round
    asks for other followees, so that neither finds its statement prepared.
    """
    with _database(NODES) as (running, topology, db):
        _fill(running, topology, 1_000, users=8)
        running.settle()
        drawn = random.Random(2)  # noqa: S311  # no secret
        fields, followees = ["id", "caption"], drawn.sample(range(SHARDS * 8), FOLLOWEES)

        def ours() -> float:
            followees[:] = drawn.sample(range(SHARDS * 8), FOLLOWEES)
            began = time.perf_counter()
            found = db.select_many(
                fields, "bench_photos", followees, "user_id", order_by="-id", limit=10
            )
            took = time.perf_counter() - began
            _require([len(rows) for rows in found] == [10] * FOLLOWEES)
            return took

        def singly() -> float:
            began = time.perf_counter()
            for user in followees:
                where = "user_id = %s"
                db.select(fields, "bench_photos", user, where, [user], order_by="-id", limit=10)
            return time.perf_counter() - began

        sides = {"ours": ours, "singly": singly}
        for side in sides.values():
            side()
        times = alternate(sides, scale.of(41, 2))
        return [
            compare(
                f"router: rows of {FOLLOWEES} keys on {NODES} nodes, select_many",
                times["ours"],
                times["singly"],
                against=f"{FOLLOWEES} selects",
                shown=milliseconds,
                target=0.35,
            )
        ]


def loads(scale: Scale) -> list[Row]:
    """Insert 10,000 rows over 64 shards on 2 nodes, against COPY and INSERT by hand.

    By hand means what a careful application would do: group rows by shard, and in a thread for
    each node one transaction with a COPY, or an INSERT of all rows, for each shard. The quicker
    of the two is the reference. Each side begins with empty tables.
    """
    count = scale.of(10_000, 640)
    with _database(2) as (running, topology, db), ThreadPoolExecutor(2) as threads:
        _fill(running, topology, 0)
        running.settle()
        pools = {key: _pool(db, key) for key in range(SHARDS)}
        rows = [
            (n % SHARDS, {"id": n, "caption": f"photo {n}", "user_id": n}) for n in range(count)
        ]

        def empty() -> None:
            for index, node in enumerate(topology.nodes.values()):
                with running.connect(index, user="postgres") as connection:
                    names = ", ".join(f"shard{shard}.bench_photos" for shard in node.shards)
                    connection.execute(f"TRUNCATE {names}".encode())

        def ours() -> float:
            empty()
            began = time.perf_counter()
            written = db.insert_many("bench_photos", rows)
            took = time.perf_counter() - began
            _require(written == count)
            return took

        def by_hand(write: Callable[[Any, int, list[tuple[Any, ...]]], None]) -> Side:
            def node(keys: dict[int, list[tuple[Any, ...]]]) -> None:
                with pools[next(iter(keys))].connection() as connection, connection.transaction():
                    for key, some in keys.items():
                        write(connection, key, some)

            def side() -> float:
                empty()
                began = time.perf_counter()
                nodes: dict[int, dict[int, list[tuple[Any, ...]]]] = {}
                for key, row in rows:
                    shards = nodes.setdefault(id(pools[key]), {})
                    shards.setdefault(key, []).append(tuple(row.values()))
                list(threads.map(node, nodes.values()))
                return time.perf_counter() - began

            return side

        sides = {"ours": ours, "COPY": by_hand(_copy), "INSERT": by_hand(_insert)}
        for side in sides.values():
            side()
        times = alternate(sides, scale.of(21, 2))
        quicker = min("COPY", "INSERT", key=lambda name: statistics.median(times[name]))
        return [
            compare(
                f"router: {count:,} rows into {SHARDS} shards, insert_many",
                times["ours"],
                times[quicker],
                against=f"{quicker} by hand",
                shown=milliseconds,
                target=1.2,
            )
        ]


def _copy(connection: Any, key: int, rows: list[tuple[Any, ...]]) -> None:
    statement = f"COPY shard{key}.bench_photos (id, caption, user_id) FROM STDIN"
    with connection.cursor().copy(statement.encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _insert(connection: Any, key: int, rows: list[tuple[Any, ...]]) -> None:
    values = ", ".join(["(%s, %s, %s)"] * len(rows))
    statement = f"INSERT INTO shard{key}.bench_photos (id, caption, user_id) VALUES {values}"
    connection.execute(statement.encode(), list(itertools.chain.from_iterable(rows)))


def top_of_all(scale: Scale) -> list[Row]:
    """Give the newest 30 of 10 million rows over 64 shards, against the same by hand."""
    total = scale.of(10_000_000, 10_000)
    with _database(2) as (running, topology, db), ThreadPoolExecutor(2) as threads:
        _fill(running, topology, total // SHARDS)
        running.settle()
        pools = {key: _pool(db, key) for key in range(SHARDS)}
        nodes: dict[int, list[int]] = {}
        for key in range(SHARDS):
            nodes.setdefault(id(pools[key]), []).append(key)

        def ask(keys: list[int]) -> list[Any]:
            parts = " UNION ALL ".join(
                f"(SELECT id, caption FROM shard{k}.bench_photos ORDER BY id DESC LIMIT {TOP})"
                for k in keys
            )
            with pools[keys[0]].connection() as connection:
                statement = f"{parts} ORDER BY 1 DESC LIMIT {TOP}".encode()
                found: list[Any] = connection.execute(statement).fetchall()
                return found

        def ours() -> float:
            began = time.perf_counter()
            found = list(db.scatter(["id", "caption"], "bench_photos", order_by="-id", limit=TOP))
            took = time.perf_counter() - began
            _require(len(found) == TOP)
            return took

        def by_hand() -> float:
            began = time.perf_counter()
            answers = threads.map(ask, nodes.values())
            merged = heapq.merge(*answers, key=lambda row: row[0], reverse=True)
            found = list(itertools.islice(merged, TOP))
            took = time.perf_counter() - began
            _require(len(found) == TOP)
            return took

        sides = {"ours": ours, "by hand": by_hand}
        for side in sides.values():
            side()
        times = alternate(sides, scale.of(41, 2))
        return [
            compare(
                f"router: top {TOP} of {total // SHARDS * SHARDS:,} rows, scatter",
                times["ours"],
                times["by hand"],
                against="by hand",
                shown=milliseconds,
                target=1.3,
                note=f"a node sends {TOP} rows in all",
            )
        ]


def tasks(scale: Scale) -> list[Row]:  # noqa: C901  # its sides share what they run on
    """Let 100 tasks select on the asynchronous face, and 100 threads on the other.

    Both have pools of the same size, and the same shards in the same order.
    """
    each = scale.of(50, 2)
    with _database(2) as (running, topology, db):
        _fill(running, topology, 1_000)
        running.settle()

        def in_threads() -> float:
            def work(client: int) -> None:
                for number in range(each):
                    db.select("caption", "bench_photos", client + number, "id = %s", [number])

            clients = [threading.Thread(target=work, args=(n,)) for n in range(CLIENTS)]
            began = time.perf_counter()
            for one in clients:
                one.start()
            for one in clients:
                one.join()
            return time.perf_counter() - began

        with asyncio.Runner() as runner:
            other = AsyncShardedDatabase(topology, pool=_POOL)

            async def work(client: int) -> None:
                for number in range(each):
                    await other.select(
                        "caption", "bench_photos", client + number, "id = %s", [number]
                    )

            async def all_tasks() -> float:
                began = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for client in range(CLIENTS):
                        group.create_task(work(client))
                return time.perf_counter() - began

            def in_tasks() -> float:
                return runner.run(all_tasks())

            sides = {"tasks": in_tasks, "threads": in_threads}
            for side in sides.values():
                side()
            times = alternate(sides, scale.of(15, 2))
            runner.run(other.close())
        return [
            compare(
                f"router: {CLIENTS} asyncio tasks",
                times["tasks"],
                times["threads"],
                against=f"{CLIENTS} threads",
                shown=per(CLIENTS * each, "select"),
                target=1.0,
            )
        ]


_POOL = PoolSettings(min_size=10, max_size=10)


@contextmanager
def _database(nodes: int) -> Iterator[tuple[Fleet, Topology, ShardedDatabase]]:
    """Start servers with 64 shards, and open them with the router."""
    with fleet.running(nodes) as running:
        topology = running.init(SHARDS)
        with ShardedDatabase(topology, pool=_POOL) as db:
            yield running, topology, db


def _fill(running: Fleet, topology: Topology, rows: int, *, users: int = 1) -> None:
    """Make a table with so many rows in every shard, ids from 0; unlogged, for it is only read.

    They are of so many users in turn, whose shard it is.
    """
    for index, node in enumerate(topology.nodes.values()):
        with running.connect(index, user="postgres") as connection:
            for shard in node.shards:
                name = f"shard{shard}.bench_photos"
                connection.execute(
                    f"CREATE UNLOGGED TABLE {name} AS SELECT n::bigint AS id, 'photo ' || n AS"
                    f" caption, {shard}::bigint + n % {users} * {SHARDS} AS user_id"
                    f" FROM generate_series(0, {rows - 1}) AS n".encode()
                )
                connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)".encode())
                connection.execute(f"CREATE INDEX ON {name} (user_id, id)".encode())
                connection.execute(f"VACUUM ANALYZE {name}".encode())


def _pool(db: ShardedDatabase, key: int) -> Any:
    """Give the pool that the router has opened for a key's node."""
    db.select("id", "bench_photos", key, limit=1)
    return db._pools[db.node_of(key)].connections  # the reference uses what ours uses


def _by_hand(
    wanted: list[tuple[int, int]], pools: dict[int, Any], threads: ThreadPoolExecutor
) -> list[Any]:
    nodes: dict[int, dict[int, list[int]]] = {}
    for key, number in wanted:
        nodes.setdefault(id(pools[key]), {}).setdefault(key, []).append(number)

    def ask(ids: dict[int, list[int]]) -> list[Any]:
        statement = " UNION ALL ".join(
            f"SELECT {key}, id, id, caption FROM shard{key}.bench_photos WHERE id = ANY (%s)"
            for key in ids
        ).encode()
        with pools[next(iter(ids))].connection() as connection:
            found: list[Any] = connection.execute(statement, list(ids.values())).fetchall()
            return found

    rows = {
        (row[0], row[1]): row[2:] for answer in threads.map(ask, nodes.values()) for row in answer
    }
    return [rows.get(one) for one in wanted]


def _require(fine: bool) -> None:
    if not fine:
        raise RuntimeError("rows are missing")
