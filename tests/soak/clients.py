"""Clients of a fleet: each is a thread that does one operation after the other."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg

from tests.soak.fleet import DATABASE, ROLE, SHARDS
from tests.soak.history import Kind, Op, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.soak.recorder import Recorder

Session = psycopg.Connection[Any]

INSERT = "INSERT INTO {} (token) VALUES (%s) RETURNING id, port"
CHANGE = (
    "UPDATE {} SET version = %s WHERE token = %s AND version < %s"
    " RETURNING current_setting('port')::integer"
)
READ = "SELECT token, version, current_setting('port')::integer FROM {} WHERE token = ANY (%s)"

PATIENCE_S = 30
"""Of a login: longer than any pause."""
_ASKED = 6
_AFTER_ERROR_S = 0.2
_STAY = 6
"""How many operations a client does in one shard before it goes to another."""
_NEVER_SENT = ("connection failed", "connection is bad", "connection timeout")
_REFUSED_BY_POOLER = ("server login", "query_wait_timeout", "no such database")
_UNKNOWN = {"57P01", "57P02", "57P03", "08P01", "08006", "08003", "40003", "58030"}


def outcome_of(error: psycopg.Error) -> Outcome:
    """Tell whether an operation that ended with an error may have been done."""
    text = str(error)
    if error.sqlstate is None:
        return "refused" if any(words in text for words in _NEVER_SENT) else "unknown"
    if error.sqlstate == "08P01" and any(words in text for words in _REFUSED_BY_POOLER):
        return "refused"
    return "unknown" if error.sqlstate in _UNKNOWN else "refused"


class Context:
    """What all clients share: where to write, who owns what, and when to stop or to rest."""

    def __init__(
        self,
        recorder: Recorder,
        ports: Mapping[int, str],
        poolers: Mapping[str, int],
        owners: Callable[[], Mapping[int, str]],
        seed: int,
    ) -> None:
        self.recorder = recorder
        self.ports = ports
        self.nodes = {node: port for port, node in ports.items()}
        self.poolers = poolers
        self.owners = owners
        self.seed = seed
        self.stop = threading.Event()
        self.rest = threading.Event()
        """Set while no client may hold a transaction open."""


class Client(threading.Thread):
    """Writes, changes and reads rows; what a subclass gives is the route to a shard."""

    interval_s = 0.2
    by = ""

    def __init__(self, name: str, context: Context) -> None:
        super().__init__(name=name, daemon=True)
        self.context = context
        self.chance = random.Random(f"{context.seed} {name}")  # noqa: S311  # no secret
        self.crash: BaseException | None = None
        self._session: tuple[object, Session] | None = None
        self._versions: dict[int, dict[int, int]] = {}

    def route(self, shard: int) -> tuple[object, dict[str, Any], str]:
        """Give where a shard is served: what sessions are kept by, libpq's words, the table."""
        raise NotImplementedError

    def run(self) -> None:
        turn = shard = 0
        try:
            while not self.context.stop.wait(self.interval_s * (0.5 + self.chance.random())):
                if turn % _STAY == 0:
                    shard = self.chance.randrange(SHARDS)
                turn += 1
                self.operate(shard)
        except BaseException as error:  # noqa: BLE001  # who joins raises it
            self.crash = error
        finally:
            self._forget()

    def operate(self, shard: int) -> None:
        """Do one operation, and record it."""
        drawn = self.chance.random()
        mine = self._versions.setdefault(shard, {})
        if drawn < 0.5:
            self.insert(shard)
        elif drawn < 0.7 and mine:
            token = self.chance.choice([*mine])
            mine[token] += 1
            self.change(shard, token, mine[token])
        else:
            self.read(shard)

    def insert(self, shard: int) -> None:
        token = self.context.recorder.token()
        found = self.perform("write", shard, INSERT, [token], token=token)
        if found is not None:
            mine = self._versions.setdefault(shard, {})
            mine[token] = 0
            if len(mine) > 50:
                del mine[next(iter(mine))]

    def change(self, shard: int, token: int, version: int) -> None:
        given = [version, token, version]
        self.perform("change", shard, CHANGE, given, token=token, version=version)

    def read(self, shard: int) -> None:
        asked = self.context.recorder.some(shard, _ASKED, self.chance)
        if asked:
            self.perform("read", shard, READ, [list(asked)], asked=asked)

    def perform(
        self, kind: Kind, shard: int, statement: str, given: list[Any], **known: Any
    ) -> list[Any] | None:
        """Do it and record it; give its rows, None if it was not acknowledged."""
        begin = time.monotonic()
        try:
            rows = self.execute(shard, statement, given)
        except psycopg.Error as error:
            known |= {"outcome": outcome_of(error), "code": error.sqlstate or "08006"}
            known["message"] = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            self._record(kind, shard, begin, **known)
            if self._session is not None and self._session[1].closed:
                self._forget()
            self.context.stop.wait(_AFTER_ERROR_S)
            return None
        self._record(
            kind, shard, begin, outcome="acknowledged", **known, **self._learnt(kind, rows)
        )
        return rows

    def execute(self, shard: int, statement: str, given: list[Any]) -> list[Any]:
        """Run one statement in autocommit."""
        key, where, table = self.route(shard)
        if self._session is None or self._session[0] != key:
            self._forget()
            given_to_libpq = {"connect_timeout": PATIENCE_S, "prepare_threshold": None} | where
            made = psycopg.connect(**given_to_libpq, user=ROLE, autocommit=True)
            self._session = (key, made)
        return self.send(self._session[1], statement.format(table), given)

    def send(self, session: Session, statement: str, given: list[Any]) -> list[Any]:
        cursor = session.execute(statement.encode(), given)
        return cursor.fetchall() if cursor.description else []

    def _learnt(self, kind: Kind, rows: list[Any]) -> dict[str, Any]:
        ports = self.context.ports
        if kind == "write":
            return {"id": rows[0][0], "node": ports.get(rows[0][1], "")}
        if kind == "read":
            node = ports.get(rows[0][2], "") if rows else ""
            return {"seen": tuple((token, version) for token, version, _ in rows), "node": node}
        return {"node": ports.get(rows[0][0], "")} if rows else {}

    def _record(self, kind: Kind, shard: int, begin: float, **known: Any) -> None:
        given = {"by": self.by} | known
        self.context.recorder.add(Op(self.name, kind, shard, begin, time.monotonic(), **given))

    def _forget(self) -> None:
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session[1].close()
            self._session = None


class Pooled(Client):
    """Goes through one pooler, by the alias of the shard: it knows no map."""

    def __init__(self, name: str, context: Context, pooler: str) -> None:
        super().__init__(name, context)
        self.by = pooler

    def route(self, shard: int) -> tuple[object, dict[str, Any], str]:
        where = {"host": "127.0.0.1", "port": self.context.poolers[self.by]}
        return shard, where | {"dbname": f"shard{shard}"}, "writes"


class Direct(Client):
    """Goes to the node that owns the shard, by the map, past all poolers."""

    by = "direct"

    def route(self, shard: int) -> tuple[object, dict[str, Any], str]:
        node = self.context.owners()[shard]
        where = {"host": "127.0.0.1", "port": self.context.nodes[node], "dbname": DATABASE}
        return node, where, f"shard{shard}.writes"


class Prepared(Direct):
    """The same with statements that the server has prepared."""

    def send(self, session: Session, statement: str, given: list[Any]) -> list[Any]:
        cursor = session.execute(statement.encode(), given, prepare=True)
        return cursor.fetchall() if cursor.description else []


class ByNode(Client):
    """Goes through one pooler, by the alias of the node that owns the shard."""

    def __init__(self, name: str, context: Context, pooler: str) -> None:
        super().__init__(name, context)
        self.pooler = pooler
        self.by = f"{pooler} by nodes"

    def route(self, shard: int) -> tuple[object, dict[str, Any], str]:
        alias = f"{DATABASE}_{self.context.owners()[shard]}"
        where = {"host": "127.0.0.1", "port": self.context.poolers[self.pooler], "dbname": alias}
        return alias, where, f"shard{shard}.writes"


class Login(Pooled):
    """Logs in for each operation."""

    def execute(self, shard: int, statement: str, given: list[Any]) -> list[Any]:
        self._forget()
        return super().execute(shard, statement, given)
