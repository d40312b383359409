"""Clients that do one thing of their own: log in each time, route, hold, alter, read everywhere."""

from __future__ import annotations

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.router import NoConnection, PoolSettings, ShardedDatabase
from tests.soak.clients import (
    INSERT,
    PATIENCE_S,
    READ,
    ByNode,
    Client,
    Direct,
    Login,
    Pooled,
    Prepared,
)
from tests.soak.fleet import DATABASE, ROLE, SHARDS, SUPERUSER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.clients import Context, Session

UNMOVED = 0
"""The shard that never moves, in which a client alters tables."""

_LOGINS = 6.0
"""How many a second, however long the others take."""
_AT_ONCE = 80
_HELD_S = 2.5
_HOLDS_EACH_S = 1.5
_ALTERS_EACH_S = 1.0


class Logins(Client):
    """The open loop: each operation begins when it is due, whatever became of earlier ones."""

    def __init__(self, name: str, context: Context) -> None:
        super().__init__(name, context)
        self._idle: queue.SimpleQueue[Login] = queue.SimpleQueue()
        self._made = 0

    def run(self) -> None:
        due = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while not self.context.stop.wait(max(0.0, due - time.monotonic())):
                due += 1 / _LOGINS
                shard = self.chance.randrange(SHARDS)
                pool.submit(self._one, shard).add_done_callback(self._ended)

    def _one(self, shard: int) -> None:
        try:
            one = self._idle.get_nowait()
        except queue.Empty:
            self._made += 1
            poolers = sorted(self.context.poolers)
            pooler = poolers[self._made % len(poolers)]
            one = Login(f"{self.name}-{self._made}", self.context, pooler)
        one.operate(shard)
        self._idle.put(one)

    def _ended(self, done: Any) -> None:
        if not done.cancelled() and done.exception() is not None:
            self.crash = done.exception()


class Routed(Client):
    """An application that uses `shardctl.router`."""

    by = "router"

    def __init__(self, name: str, context: Context, topology: Path) -> None:
        super().__init__(name, context)
        self._router = ShardedDatabase(topology, pool=PoolSettings(max_size=2))

    def execute(self, shard: int, statement: str, given: list[Any]) -> list[Any]:
        try:
            if statement == INSERT:
                row = {"token": given[0]}
                return [self._router.insert("writes", shard, row, returning=["id", "port"])]
            if statement == READ:
                fields = ["token", "version"]
                rows = self._router.select(fields, "writes", shard, "token = ANY (%s)", given)
                return [(*row, 0) for row in rows]
            where, values = "token = %s AND version < %s", {"version": given[0]}
            self._router.update("writes", shard, values, where, given[1:])
        except NoConnection as error:
            raise psycopg.OperationalError(f"connection failed: {error}") from error
        return []

    def run(self) -> None:
        super().run()
        self._router.close()


class Holding(Client):
    """Keeps transactions open: writes a row, waits, and commits."""

    interval_s = _HOLDS_EACH_S
    sent = 0.0

    def operate(self, shard: int) -> None:
        if not self.context.rest.is_set():
            self.insert(shard)

    def send(self, session: Session, statement: str, given: list[Any]) -> list[Any]:
        session.execute("BEGIN")
        rows = session.execute(statement.encode(), given).fetchall()
        until = time.monotonic() + self.chance.random() ** 2 * _HELD_S
        while time.monotonic() < until and not self.context.rest.wait(0.05):
            pass
        self.sent = time.monotonic()
        session.execute("COMMIT")
        return rows

    def insert(self, shard: int) -> None:
        self.sent = time.monotonic()
        super().insert(shard)

    def _record(self, kind: Any, shard: int, begin: float, **known: Any) -> None:
        super()._record(kind, shard, max(begin, self.sent), **known)
        if self._session is not None and not self._session[1].closed:
            try:
                self._session[1].rollback()
            except psycopg.Error:
                self._forget()


class Holder(Holding, Direct):
    """Past all poolers: the fence has to wait for it."""


class HolderPooled(Holding, Pooled):
    """Through a pooler, whose pause has to wait for it."""


class Altering(Client):
    """Creates, alters and drops a table of its own in the shard that does not move."""

    interval_s = _ALTERS_EACH_S
    by = "direct"
    statements = (
        "CREATE TABLE IF NOT EXISTS {} (id bigint PRIMARY KEY DEFAULT next_id())",
        "ALTER TABLE {} ADD COLUMN IF NOT EXISTS note text",
        "CREATE INDEX IF NOT EXISTS altering_note ON {} (note)",
        "GRANT SELECT ON {} TO " + ROLE,
        "TRUNCATE {}",
        "DROP TABLE {}",
    )

    def route(self, shard: int) -> tuple[object, dict[str, Any], str]:
        node = self.context.owners()[shard]
        where = {"host": "127.0.0.1", "port": self.context.nodes[node], "dbname": DATABASE}
        return node, where | {"options": f"-c search_path=shard{shard}"}, "altering"

    def run(self) -> None:
        self._turn = 0
        super().run()
        try:
            self.execute(UNMOVED, "DROP TABLE IF EXISTS {}", [])
        finally:
            self._forget()

    def operate(self, shard: int) -> None:
        del shard
        statement = self.statements[self._turn % len(self.statements)]
        if self.perform("other", UNMOVED, statement, []) is not None:
            self._turn += 1

    def execute(self, shard: int, statement: str, given: list[Any]) -> list[Any]:
        del given
        if self._session is None:
            _, where, _ = self.route(shard)
            given_to_libpq = {"connect_timeout": PATIENCE_S, "prepare_threshold": None} | where
            made = psycopg.connect(**given_to_libpq, user=SUPERUSER, autocommit=True)
            self._session = ("", made)
        self._session[1].execute(statement.format("altering").encode())
        return []


class Everywhere(Client):
    """Reads a shard on every node that answers, owner or not; refusals are what it expects."""

    by = "everywhere"
    interval_s = 0.3

    def operate(self, shard: int) -> None:
        asked = self.context.recorder.some(shard, 6, self.chance)
        for node, port in self.context.nodes.items() if asked else ():
            begin = time.monotonic()
            try:
                where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "dbname": DATABASE}
                with psycopg.connect(**where, user=ROLE, connect_timeout=2) as session:
                    session.autocommit = True
                    begin = time.monotonic()
                    query = READ.format(f"shard{shard}.writes")
                    rows = session.execute(query.encode(), [list(asked)]).fetchall()
            except psycopg.Error:
                continue
            seen = tuple((token, version) for token, version, _ in rows)
            known: dict[str, Any] = {"asked": asked, "seen": seen, "node": node}
            self._record("read", shard, begin, outcome="acknowledged", **known)


def all_of(context: Context, topology: Path) -> list[Client]:
    """Make the clients of a soak."""
    first, second = sorted(context.poolers)
    return [
        *(Pooled(f"closed-{n}", context, (first, second)[n % 2]) for n in range(4)),
        Logins("login", context),
        Direct("direct-1", context),
        Prepared("direct-2", context),
        ByNode("nodes-1", context, first),
        Routed("router-1", context, topology),
        Holder("holder-1", context),
        HolderPooled("holder-2", context, second),
        Altering("altering-1", context),
        Everywhere("reader-1", context),
    ]
