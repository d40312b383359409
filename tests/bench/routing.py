"""What the router costs an application: against plain psycopg, and against SQL by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.router import AsyncShardedDatabase, PoolSettings, ShardedDatabase
from shardctl.router.connections import is_quiet
from tests.bench import fleet, pooling
from tests.bench.measure import Row, alternate, compare, limit, milliseconds, per, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale

SHARDS = 64
CLIENTS = 100
TOP = 30
KEYS = 50
NODES = 12


def one_row(scale: Scale) -> list[Row]:
    """Time one-row calls through the router and a pooler, against psycopg's pool and a connection.

    Fair: the same pooler, with statements that the other sides need not compose, of the same
    shards in the same order, in autocommit as the router does; nothing is prepared behind a
    pooler. "by hand" is one open connection a node, of no pool: no application with several
    threads can have that.
    """
    count = scale.of(300, 20)
    keys = [random.Random(n).randrange(SHARDS) for n in range(count)]  # noqa: S311  # no secret
    with _pooled_database() as (running, topology, db), ExitStack() as stack:
        _fill(running, topology, 1_000)
        running.settle()
        pools = {key: _pool(db, key) for key in range(SHARDS)}
        each = {id(pool): pool for pool in pools.values()}
        nodes = {one: stack.enter_context(pool.connection()) for one, pool in each.items()}
        plain = {key: nodes[id(pools[key])] for key in range(SHARDS)}
        rows = []
        for what, (ours, by_hand) in _CALLS.items():

            def routed(ours: Ours = ours) -> None:
                for key in keys:
                    ours(db, key)

            def pooled(by_hand: ByHand = by_hand) -> None:
                for key in keys:
                    with pools[key].connection() as connection:
                        by_hand(connection, key)

            def plainly(by_hand: ByHand = by_hand) -> None:
                for key in keys:
                    by_hand(plain[key], key)

            sides = {"ours": timed(routed), "pool": timed(pooled), "plain": timed(plainly)}
            times = alternate(sides, scale.of(41, 2), warm=True)
            name, shown = f"router: one-row {what}", per(count, "row")
            against = {"psycopg": ("plain", _TARGETS[what]), "psycopg_pool": ("pool", 1.1)}
            rows += [
                compare(name, times["ours"], times[side], against=text, shown=shown, target=target)
                for text, (side, target) in against.items()
            ]
        return rows


def _transaction(db: ShardedDatabase, key: int) -> None:
    with db.shard(key) as connection:
        connection.execute("SELECT id, caption FROM bench_photos WHERE id = %s", [key]).fetchall()


def _insert_by_hand(connection: Any, key: int) -> None:
    connection.execute(
        f"INSERT INTO shard{key}.photos_by_user (user_id, image_url)"
        " VALUES (%s, %s) RETURNING id".encode(),
        (key, "/1.jpg"),
    ).fetchone()


def _select_by_hand(connection: Any, key: int, row: int | None = None) -> None:
    connection.execute(
        f"SELECT id, caption FROM shard{key}.bench_photos WHERE id = %s".encode(),
        [key if row is None else row],
    ).fetchall()


def _transaction_by_hand(connection: Any, key: int) -> None:
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path TO shard{key}".encode())
        connection.execute("SELECT id, caption FROM bench_photos WHERE id = %s", [key]).fetchall()


Ours = Callable[[ShardedDatabase, int], object]
ByHand = Callable[[Any, int], None]
_CALLS: dict[str, tuple[Ours, ByHand]] = {
    "insert": (
        lambda db, key: db.insert("photos_by_user", key, {"user_id": key, "image_url": "/1.jpg"}),
        _insert_by_hand,
    ),
    "select": (
        lambda db, key: db.select(["id", "caption"], "bench_photos", key, "id = %s", [key]),
        _select_by_hand,
    ),
    "transaction": (_transaction, _transaction_by_hand),
}
_TARGETS = {"insert": 1.1, "select": 1.25, "transaction": 1.15}


def looks(scale: Scale) -> list[Row]:
    """Look whether a connection has ended before it is used, against what else could find out."""
    count = scale.of(300, 20)
    with _database(1) as (running, topology, db):
        _fill(running, topology, 1_000)
        running.settle()
        with _pool(db, 0).connection() as connection:

            def looking() -> None:
                for _ in range(count):
                    _require(is_quiet(connection))

            def asking() -> None:
                for _ in range(count):
                    connection.execute("")

            def selecting() -> None:
                for number in range(count):
                    _select_by_hand(connection, 0, number)

            sides = {"looking": timed(looking), "asking": timed(asking)}
            sides["selecting"] = timed(selecting)
            times = alternate(sides, scale.of(41, 2), warm=True)
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


def many_keys(scale: Scale) -> list[Row]:
    """Read the rows of 50 keys: against single selects, and against hand-written SQL.

    By hand means what a careful application would do: group, write one UNION ALL a node, run
    all at once in threads that are there already, and merge.
    """
    nodes = scale.of(NODES, 2)
    with _pooled_database(nodes) as (running, topology, db), ThreadPoolExecutor(nodes) as threads:
        _fill(running, topology, 1_000)
        running.settle()
        drawn = random.Random(1)  # noqa: S311  # no secret
        keys = drawn.sample(range(1_000), KEYS)
        pools = {key: _pool(db, key) for key in range(SHARDS)}

        def ours() -> None:
            found = db.select_keys(
                ["id", "caption"], "bench_photos", keys, key_field="id", order_by="-id"
            )
            _require(len(found) == KEYS)

        def singly() -> None:
            for key in keys:
                db.select(["id", "caption"], "bench_photos", key, "id = %s", [key])

        def ask(of_shard: dict[int, list[int]]) -> list[Any]:
            statement = " UNION ALL ".join(
                f"SELECT id, caption FROM shard{shard}.bench_photos WHERE id = ANY (%s)"
                for shard in of_shard
            )
            with pools[next(iter(of_shard))].connection() as connection:
                found: list[Any] = connection.execute(
                    f"{statement} ORDER BY 1 DESC".encode(), list(of_shard.values())
                ).fetchall()
                return found

        def by_hand() -> None:
            nodes: dict[int, dict[int, list[int]]] = {}
            for key in keys:
                shard = key % SHARDS
                nodes.setdefault(id(pools[shard]), {}).setdefault(shard, []).append(key)
            answers = threads.map(ask, nodes.values())
            found = list(heapq.merge(*answers, key=lambda row: row[0], reverse=True))
            _require(len(found) == KEYS)

        sides = {"ours": timed(ours), "singly": timed(singly), "by hand": timed(by_hand)}
        times = alternate(sides, scale.of(41, 2), warm=True)
        name = f"router: {KEYS} keys over {SHARDS} shards on {nodes} nodes, select_keys"
        against = {"single selects": ("singly", 0.35), "UNION ALL by hand": ("by hand", 1.2)}
        return [
            compare(
                name, times["ours"], times[side], against=text, shown=milliseconds, target=target
            )
            for text, (side, target) in against.items()
        ]


def many_rows(scale: Scale) -> list[Row]:
    """Insert 10,000 rows over 64 shards: against COPY and multi-row INSERT by hand, a node each."""
    count = scale.of(10_000, 200)
    with _pooled_database() as (running, topology, db), ThreadPoolExecutor(2) as threads:
        _fill(running, topology, 10)
        running.settle()
        pools = {shard: _pool(db, shard) for shard in range(SHARDS)}
        rows: list[dict[str, Any]] = [
            {"user_id": number, "image_url": f"/{number}.jpg"} for number in range(count)
        ]

        def ours() -> None:
            _require(db.insert_many("photos_by_user", rows, key_field="user_id") == count)

        def of_nodes() -> Iterator[dict[int, list[Any]]]:
            nodes: dict[int, dict[int, list[Any]]] = {}
            for row in rows:
                shard = row["user_id"] % SHARDS
                nodes.setdefault(id(pools[shard]), {}).setdefault(shard, []).append(row)
            return iter(nodes.values())

        def copy(of_shard: dict[int, list[Any]]) -> None:
            with pools[next(iter(of_shard))].connection() as connection, connection.transaction():
                for shard, mine in of_shard.items():
                    into = f"COPY shard{shard}.photos_by_user (user_id, image_url) FROM STDIN"
                    with connection.cursor().copy(into.encode()) as copying:
                        for row in mine:
                            copying.write_row((row["user_id"], row["image_url"]))

        def insert(of_shard: dict[int, list[Any]]) -> None:
            with pools[next(iter(of_shard))].connection() as connection, connection.transaction():
                for shard, mine in of_shard.items():
                    into = f"INSERT INTO shard{shard}.photos_by_user (user_id, image_url) VALUES "
                    values = ", ".join(["(%s, %s)"] * len(mine))
                    given = [row[name] for row in mine for name in ("user_id", "image_url")]
                    connection.execute((into + values).encode(), given)

        sides = {
            "ours": timed(ours),
            "COPY": timed(lambda: list(threads.map(copy, of_nodes()))),
            "INSERT": timed(lambda: list(threads.map(insert, of_nodes()))),
        }
        times = alternate(sides, scale.of(11, 2), warm=True)
        return [
            compare(
                f"router: {count:,} rows over {SHARDS} shards, insert_many",
                times["ours"],
                times[side],
                against=f"{side} by hand",
                shown=milliseconds,
                target=1.2,
            )
            for side in ("COPY", "INSERT")
        ]


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

        def ours() -> None:
            found = db.scatter(["id", "caption"], "bench_photos", order_by="-id", limit=TOP)
            _require(len(found) == TOP)

        def by_hand() -> None:
            answers = threads.map(ask, nodes.values())
            merged = heapq.merge(*answers, key=lambda row: row[0], reverse=True)
            _require(len(list(itertools.islice(merged, TOP))) == TOP)

        sides = {"ours": timed(ours), "by hand": timed(by_hand)}
        times = alternate(sides, scale.of(41, 2), warm=True)
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


def tasks(scale: Scale) -> list[Row]:
    """Let 100 tasks select on the asynchronous face, and 100 threads on the other.

    Both have pools of the same size, and the same shards in the same order.
    """
    each = scale.of(50, 2)
    with _database(2) as (running, topology, db):
        _fill(running, topology, 1_000)
        running.settle()

        def in_thread(client: int) -> None:
            for number in range(each):
                db.select("caption", "bench_photos", client + number, "id = %s", [number])

        def all_threads() -> None:
            with ThreadPoolExecutor(CLIENTS) as clients:
                list(clients.map(in_thread, range(CLIENTS)))

        with asyncio.Runner() as runner:
            other = AsyncShardedDatabase(topology, pool=_POOL)

            async def work(client: int) -> None:
                for number in range(each):
                    await other.select(
                        "caption", "bench_photos", client + number, "id = %s", [number]
                    )

            async def all_tasks() -> None:
                async with asyncio.TaskGroup() as group:
                    for client in range(CLIENTS):
                        group.create_task(work(client))

            tasks = timed(lambda: runner.run(all_tasks()))
            sides = {"tasks": tasks, "threads": timed(all_threads)}
            times = alternate(sides, scale.of(15, 2), warm=True)
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


def connections(scale: Scale) -> list[Row]:
    """Count what 8 threads and 8 tasks open at each node, over 1,024 shards and a pooler.

    The pooler keeps each connection to a server that it has once needed, for ten minutes. Either
    has a database of its own, so pools of 3 are 6 connections to a node.
    """
    shards, each = scale.of(1_024, 64), scale.of(128, 10)
    with _pooled_database(shards=shards) as (running, topology, _):
        few = timed(lambda: _both_faces(topology, each, PoolSettings(max_size=3)))
        default = timed(lambda: _both_faces(topology, each, PoolSettings()))
        few()
        with_few = _backends(running)
        default()
        with_default = _backends(running)
        times = alternate({"few": few, "default": default}, scale.of(5, 2))
    row = compare(
        f"router: 8 threads and 8 tasks over {shards:,} shards, pools of 3",
        times["few"],
        times["default"],
        against="pools of 10",
        shown=per(4 * 8 * each, "call"),
        note=f"connections at the nodes: {with_few}; with pools of 10: {with_default}",
    )
    most = max(with_few)
    return [row, limit("  connections at a node", most, 6, "")]


def _both_faces(topology: Topology, each: int, pool: PoolSettings) -> None:
    """Insert and select in 8 threads and 8 tasks at once."""

    def row(n: int) -> tuple[str, int, dict[str, Any]]:
        return "photos_by_user", n, {"user_id": n, "image_url": "/1.jpg"}

    def in_threads() -> None:
        def work(client: int) -> None:
            for n in range(client, 8 * each, 8):
                db.insert(*row(n))
                _require(len(db.select("id", "photos_by_user", n, limit=1)) == 1)

        with ShardedDatabase(topology, pool=pool) as db, ThreadPoolExecutor(8) as clients:
            list(clients.map(work, range(8)))

    async def in_tasks() -> None:
        async def work(client: int) -> None:
            for n in range(client, 8 * each, 8):
                await db.insert(*row(n))
                _require(len(await db.select("id", "photos_by_user", n, limit=1)) == 1)

        async with (
            AsyncShardedDatabase(topology, pool=pool) as db,
            asyncio.TaskGroup() as group,
        ):
            for client in range(8):
                group.create_task(work(client))

    with ThreadPoolExecutor(1) as beside:
        threads = beside.submit(in_threads)
        asyncio.run(in_tasks())
        threads.result()


def _backends(running: Fleet) -> list[int]:
    """Count the clients of each server, without the one that counts."""
    counts = []
    for index in range(len(running.ports)):
        with running.connect(index, user="postgres") as connection:
            [[count]] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchall()
            counts.append(count)
    return counts


_POOL = PoolSettings(min_size=10, max_size=10)


@contextmanager
def _database(nodes: int) -> Iterator[tuple[Fleet, Topology, ShardedDatabase]]:
    """Start servers with 64 shards, and open them with the router."""
    with fleet.running(nodes) as running:
        topology = running.init(SHARDS)
        with ShardedDatabase(topology, pool=_POOL) as db:
            yield running, topology, db


@contextmanager
def _pooled_database(
    nodes: int = 2, shards: int = SHARDS
) -> Iterator[tuple[Fleet, Topology, ShardedDatabase]]:
    """Start servers with shards behind a PgBouncer, and open them with the router."""
    with fleet.running(nodes) as running:
        running.init(shards)
        with (
            pooling.pooled(running, shards) as behind,
            ShardedDatabase(behind.topology, pool=_POOL) as db,
        ):
            yield running, behind.topology, db


def _fill(running: Fleet, topology: Topology, rows: int) -> None:
    """Make a table with so many rows in every shard, ids from 0; unlogged, for it is only read."""
    for index, node in enumerate(topology.nodes.values()):
        with running.connect(index, user="postgres") as connection:
            for shard in node.shards:
                name = f"shard{shard}.bench_photos"
                connection.execute(
                    f"CREATE UNLOGGED TABLE {name} AS SELECT n::bigint AS id, 'photo ' || n AS"
                    f" caption FROM generate_series(0, {rows - 1}) AS n".encode()
                )
                connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)".encode())
                connection.execute(f"VACUUM ANALYZE {name}".encode())


def _pool(db: ShardedDatabase, key: int) -> Any:
    """Give the pool that the router has opened for a key's node."""
    db.select("id", "bench_photos", key, limit=1)
    return db._nodes.pools[db.node_of(key)]  # the reference uses what ours uses


def _require(fine: bool) -> None:
    if not fine:
        raise RuntimeError("rows are missing")
