"""Clients of a fleet under chaos, a process of their own: `python -m tests.chaos.clients FILE DIR`.

Each writes what it did into a file of its own below DIR. They work until standard input ends.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.router import PoolSettings, ShardedDatabase
from shardctl.topology import loader
from tests.chaos.history import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.topology.model import Topology
    from tests.chaos.history import Kind, Outcome, Route

_NODE = "(SELECT node FROM shardctl.cluster)"
STATEMENTS: dict[str, str] = {
    "insert": "WITH made AS"
    " (INSERT INTO {0}.chaos_rows (row) VALUES (%(row)s) RETURNING id, serial),"
    " noted AS (INSERT INTO {0}.chaos_notes SELECT id, 1 FROM made),"
    " parted AS (INSERT INTO {0}.chaos_parts VALUES (%(row)s, 1)),"
    " keyless AS (INSERT INTO {0}.chaos_keyless VALUES (%(row)s, 1))"
    f" SELECT 1, {_NODE}, id, serial FROM made",
    "update": "WITH made AS (UPDATE {0}.chaos_rows SET version = %(version)s WHERE row = %(row)s"
    " RETURNING id, serial),"
    " noted AS (UPDATE {0}.chaos_notes SET version = %(version)s WHERE row_id ="
    " (SELECT id FROM {0}.chaos_rows WHERE row = %(row)s)),"
    " parted AS (UPDATE {0}.chaos_parts SET version = %(version)s WHERE row = %(row)s),"
    " keyless AS (UPDATE {0}.chaos_keyless SET version = %(version)s WHERE row = %(row)s)"
    f" SELECT %(version)s::int, {_NODE}, id, serial FROM made",
    "read": f"SELECT coalesce(max(version), 0), {_NODE}, max(id), max(serial)"
    " FROM {0}.chaos_rows WHERE row = %(row)s",
}
_LOST = re.compile(r"08...|57P0.|None")
"""What may come after a statement was carried out."""
_NOT_HERE = (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege)
_KNOWN = {("insert", "acknowledged"), ("update", "acknowledged"), ("update", "refused")}
"""After these, a row is updated further."""
_CONNECTING: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "connect_timeout": 10}

_stop = threading.Event()


class UnreachedError(Exception):
    """Of a connection that was never made, so that nothing was sent."""


def connect(host: str, port: int, dbname: str) -> psycopg.Connection[Any]:
    """Log in as an application; raises UnreachedError."""
    try:
        return psycopg.connect(host=host, port=port, dbname=dbname, user="app", **_CONNECTING)
    except psycopg.OperationalError as error:
        raise UnreachedError(error.sqlstate or "no connection") from error


class Client:
    """Writes rows of its own, changes them and reads them, over whichever session it is given."""

    def __init__(
        self, name: str, route: Route, topology: Topology, directory: Path, shards: range
    ) -> None:
        self.name, self.route, self.topology, self.shards = name, route, topology, shards
        self.random = random.Random(name)  # noqa: S311  # no secret
        self._file = (directory / f"{name}.history").open("w", buffering=1)
        self._numbers = itertools.count(1)
        self._mine: deque[tuple[int, str, int]] = deque(maxlen=200)
        """Shard, name and version last tried of rows whose fate is known."""

    def work(self, rate: float | None) -> None:
        """Do one operation after the other, or `rate` a second whatever becomes of them."""
        due = time.monotonic()
        while not _stop.is_set():
            kind, shard, row, version = self._next()
            self._do(kind, shard, row, version)
            if rate is not None:
                due += 1 / rate
                _stop.wait(max(0.0, due - time.monotonic()))

    def _next(self) -> tuple[Kind, int, str, int]:
        if self._mine and self.random.random() < 0.6:
            shard, row, version = self.random.choice(self._mine)
            return (
                ("read", shard, row, version)
                if self.random.random() < 0.5
                else (
                    "update",
                    shard,
                    row,
                    version + 1,
                )
            )
        return "insert", self.random.choice(self.shards), f"{self.name}-{next(self._numbers)}", 1

    def _do(self, kind: Kind, shard: int, row: str, version: int) -> None:
        begin = time.time()
        outcome: Outcome = "acknowledged"
        error, found = None, (0, None, None, None)
        try:
            found = self.run(shard, kind, {"row": row, "version": version})
        except (psycopg.Error, ShardctlError, UnreachedError) as raised:
            outcome, error = judged(raised)
        wrote = (version, *found[1:]) if kind != "read" else found
        wrote = (version, None, None, None) if outcome != "acknowledged" else wrote
        of = (self.name, self.route, kind, shard, row, begin, time.time(), outcome)
        self._file.write(Operation(*of, *wrote, error=error).line())
        if kind == "update":
            with contextlib.suppress(ValueError):
                self._mine.remove((shard, row, version - 1))
        # A version that was refused is not tried again: no client may see it, then or later.
        if (kind, outcome) in _KNOWN:
            self._mine.append((shard, row, version))

    def run(self, shard: int, kind: Kind, values: dict[str, Any]) -> tuple[Any, ...]:
        """Run the statement somewhere; give version, node, id, serial. Raises psycopg's errors."""
        raise NotImplementedError

    def answer(
        self, connection: psycopg.Connection[Any], shard: int, kind: Kind, values: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Run it over a connection."""
        schema = sql.Identifier(f"shard{shard}")
        row = connection.execute(sql.SQL(STATEMENTS[kind]).format(schema), values).fetchone()
        if row is None:  # an update of a row that is not there
            raise psycopg.errors.NoDataFound("no such row")
        return tuple(row)


class Aliased(Client):
    """By the poolers' aliases of shards; a new connection now and then, to one or the other."""

    holds = 0.0
    """Up to how many seconds its transactions stay open."""

    def run(self, shard: int, kind: Kind, values: dict[str, Any]) -> tuple[Any, ...]:
        pooler = self.random.choice(list(self.topology.poolers.values()))
        with connect(pooler.host, pooler.port, f"shard{shard}") as connection:
            if not self.holds or kind == "read":
                return self.answer(connection, shard, kind, values)
            with connection.transaction():
                found = self.answer(connection, shard, kind, values)
                _stop.wait(self.random.uniform(0, self.holds))
            return found


class Holding(Aliased):
    """The same in transactions that stay open for a while."""

    holds = 0.4


class Direct(Client):
    """Straight to the nodes: whichever has the shard under its name."""

    def run(self, shard: int, kind: Kind, values: dict[str, Any]) -> tuple[Any, ...]:
        failed: Exception | None = None
        nodes = list(self.topology.nodes.values())
        for node in self.random.sample(nodes, len(nodes)):
            try:
                with connect(node.host, node.port, self.topology.database.name) as connection:
                    return self.answer(connection, shard, kind, values)
            except _NOT_HERE as error:
                failed = error
            except UnreachedError as error:  # a spare is off: the answers of others say more
                failed = failed or error
        assert failed is not None
        raise failed


class Routed(Client):
    """By shardctl's router."""

    database: ShardedDatabase

    def run(self, shard: int, kind: Kind, values: dict[str, Any]) -> tuple[Any, ...]:
        with self.database.shard(number=shard) as connection:
            return self.answer(connection, shard, kind, values)


def judged(error: psycopg.Error | ShardctlError | UnreachedError) -> tuple[Outcome, str]:
    """Give what became of an operation that ended with an error, and the error's kind."""
    if not isinstance(error, psycopg.Error):
        return "refused", str(error) if isinstance(error, UnreachedError) else type(error).__name__
    kind = error.sqlstate or "connection lost"
    return ("unknown" if _LOST.match(str(error.sqlstate)) else "refused"), kind


def everyone(topology: Topology, directory: Path) -> Iterator[Callable[[], None]]:
    """Give what each client does."""
    shards = range(topology.shard_count)
    database = ShardedDatabase(topology, connect={"user": "app"}, pool=PoolSettings(max_size=4))
    kinds: list[tuple[type[Client], Route, int, float | None]] = [
        (Aliased, "alias", 1, None),
        (Aliased, "alias", 4, 10.0),
        (Holding, "alias", 2, 5.0),
        (Direct, "direct", 2, 10.0),
        (Routed, "router", 2, 20.0),
    ]
    for kind, route, count, rate in kinds:
        for number in range(count):
            name = f"{kind.__name__.lower()}{number}-{'open' if rate else 'closed'}"
            client = kind(name, route, topology, directory, shards)
            if isinstance(client, Routed):
                client.database = database
            yield lambda client=client, rate=rate: client.work(rate)  # type: ignore[misc]


def main(file: str, directory: str) -> None:
    """Be the clients."""
    topology = loader.load(Path(file))
    everybody = list(everyone(topology, Path(directory)))
    with ThreadPoolExecutor(len(everybody)) as threads:
        working = [threads.submit(one) for one in everybody]
        sys.stdin.read()
        _stop.set()
        for one in working:
            one.result(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
