"""What the router costs an application: against plain psycopg, and against SQL by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from shardctl.router import AsyncShardedDatabase, PoolSettings, ShardedDatabase
from shardctl.router.connections import is_quiet
from tests.bench import fleet, pooling
from tests.bench.measure import Row, alternate, compare, limit, milliseconds, per, timed, versus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale

Thing = TypeVar("Thing")

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
    with _pooled_database(rows=1_000) as (_, _, db), ExitStack() as stack:
        pools = _pools(db)
        each = {id(pool): pool for pool in pools.values()}
        nodes = {one: stack.enter_context(pool.connection()) for one, pool in each.items()}
        plain = {key: nodes[id(pools[key])] for key in range(SHARDS)}
        rows: list[Row] = []
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
            name, shown = f"router: one-row {what}", per(count, "row")
            against = {"plain": ("psycopg", _TARGETS[what]), "pool": ("psycopg_pool", 1.1)}
            rows += versus(name, sides, scale.of(41, 2), against, shown, warm=True)
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
    with _database(1, 1_000) as (_, _, db):
        with _pools(db)[0].connection() as connection:

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
    with _pooled_database(nodes, rows=1_000) as (_, _, db), ThreadPoolExecutor(nodes) as threads:
        drawn = random.Random(1)  # noqa: S311  # no secret
        keys = drawn.sample(range(1_000), KEYS)
        pools = _pools(db)

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
            answers = threads.map(ask, _by_node(pools, keys, lambda key: key % SHARDS))
            found = list(heapq.merge(*answers, key=lambda row: row[0], reverse=True))
            _require(len(found) == KEYS)

        sides = {"ours": timed(ours), "singly": timed(singly), "by hand": timed(by_hand)}
        name = f"router: {KEYS} keys over {SHARDS} shards on {nodes} nodes, select_keys"
        against = {"singly": ("single selects", 0.35), "by hand": ("UNION ALL by hand", 1.2)}
        return versus(name, sides, scale.of(41, 2), against, milliseconds, warm=True)


def many_rows(scale: Scale) -> list[Row]:
    """Insert 10,000 rows over 64 shards: against COPY and multi-row INSERT by hand, a node each."""
    count = scale.of(10_000, 200)
    with _pooled_database(rows=10) as (_, _, db), ThreadPoolExecutor(2) as threads:
        pools = _pools(db)
        rows: list[dict[str, Any]] = [
            {"user_id": number, "image_url": f"/{number}.jpg"} for number in range(count)
        ]

        def ours() -> None:
            _require(db.insert_many("photos_by_user", rows, key_field="user_id") == count)

        def of_nodes() -> Iterable[dict[int, list[Any]]]:
            return _by_node(pools, rows, lambda row: row["user_id"] % SHARDS)

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
        name = f"router: {count:,} rows over {SHARDS} shards, insert_many"
        against = {side: (f"{side} by hand", 1.2) for side in ("COPY", "INSERT")}
        return versus(name, sides, scale.of(11, 2), against, milliseconds, warm=True)


def top_of_all(scale: Scale) -> list[Row]:
    """Give the newest 30 of 10 million rows over 64 shards, against the same by hand."""
    total = scale.of(10_000_000, 10_000)
    with _database(2, total // SHARDS) as (_, _, db), ThreadPoolExecutor(2) as threads:
        pools = _pools(db)
        nodes = [list(shards) for shards in _by_node(pools, range(SHARDS), lambda shard: shard)]

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
            answers = threads.map(ask, nodes)
            merged = heapq.merge(*answers, key=lambda row: row[0], reverse=True)
            _require(len(list(itertools.islice(merged, TOP))) == TOP)

        sides = {"ours": timed(ours), "by hand": timed(by_hand)}
        name = f"router: top {TOP} of {total // SHARDS * SHARDS:,} rows, scatter"
        against, note = {"by hand": ("by hand", 1.3)}, f"a node sends {TOP} rows in all"
        return versus(name, sides, scale.of(41, 2), against, milliseconds, warm=True, note=note)


def tasks(scale: Scale) -> list[Row]:
    """Let 100 tasks select on the asynchronous face, and 100 threads on the other.

    Both have pools of the same size, and the same shards in the same order.
    """
    each = scale.of(50, 2)
    with _database(2, 1_000) as (_, topology, db):

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
                await asyncio.gather(*map(work, range(CLIENTS)))

            tasks = timed(lambda: runner.run(all_tasks()))
            sides = {"tasks": tasks, "threads": timed(all_threads)}
            name, shown = f"router: {CLIENTS} asyncio tasks", per(CLIENTS * each, "select")
            against = {"threads": (f"{CLIENTS} threads", 1.0)}
            rows = versus(name, sides, scale.of(15, 2), against, shown, warm=True)
            runner.run(other.close())
        return rows


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
        name = f"router: 8 threads and 8 tasks over {shards:,} shards, pools of 3"
        sides, against = {"few": few, "default": default}, {"default": ("pools of 10", None)}
        note = f"connections at the nodes: {with_few}; with pools of 10: {with_default}"
        shown = per(4 * 8 * each, "call")
        [row] = versus(name, sides, scale.of(5, 2), against, shown, note=note)
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

        async with AsyncShardedDatabase(topology, pool=pool) as db:
            await asyncio.gather(*map(work, range(8)))

    with ThreadPoolExecutor(1) as beside:
        threads = beside.submit(in_threads)
        asyncio.run(in_tasks())
        threads.result()


def _backends(running: Fleet) -> list[int]:
    """Count the clients of each server, without the one that counts."""
    counts = []
    for connection in running.each("app"):
        [[count]] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
        counts.append(count)
    return counts


_POOL = PoolSettings(min_size=10, max_size=10)


@contextmanager
def _database(nodes: int, rows: int) -> Iterator[tuple[Fleet, Topology, ShardedDatabase]]:
    """Start servers with 64 shards of so many rows, and open them with the router."""
    with fleet.running(nodes) as running:
        topology = running.init(SHARDS)
        _fill(running, topology, rows)
        with ShardedDatabase(topology, pool=_POOL) as db:
            yield running, topology, db


@contextmanager
def _pooled_database(
    nodes: int = 2, shards: int = SHARDS, *, rows: int = 0
) -> Iterator[tuple[Fleet, Topology, ShardedDatabase]]:
    """Start servers with shards behind a PgBouncer, and open them with the router."""
    with fleet.running(nodes) as running:
        topology = running.init(shards)
        if rows:
            _fill(running, topology, rows)
        with (
            pooling.pooled(running, shards) as behind,
            ShardedDatabase(behind.topology, pool=_POOL) as db,
        ):
            yield running, behind.topology, db


def _fill(running: Fleet, topology: Topology, rows: int) -> None:
    """Make a table with so many rows in every shard, ids from 0; unlogged, for it is only read."""
    for connection, node in zip(running.each("app"), topology.nodes.values(), strict=True):
        for shard in node.shards:
            name = f"shard{shard}.bench_photos"
            connection.execute(
                f"CREATE UNLOGGED TABLE {name} AS SELECT n::bigint AS id, 'photo ' || n AS"
                f" caption FROM generate_series(0, {rows - 1}) AS n".encode()
            )
            connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)".encode())
            connection.execute(f"VACUUM ANALYZE {name}".encode())
    running.settle()


def _pools(db: ShardedDatabase) -> dict[int, Any]:
    """Give the pool that the router has opened for each shard's node."""
    for shard in range(SHARDS):
        db.select("id", "bench_photos", shard, limit=1)
    # The reference uses what ours uses.
    return {shard: db._nodes.pools[db.node_of(shard)] for shard in range(SHARDS)}


def _by_node(
    pools: dict[int, Any], things: Iterable[Thing], shard_of: Callable[[Thing], int]
) -> Iterable[dict[int, list[Thing]]]:
    """Divide things by the pools of their shards, and then by these."""
    nodes: dict[int, dict[int, list[Thing]]] = {}
    for thing in things:
        shard = shard_of(thing)
        nodes.setdefault(id(pools[shard]), {}).setdefault(shard, []).append(thing)
    return nodes.values()


def _require(fine: bool) -> None:
    if not fine:
        raise RuntimeError("rows are missing")
