"""What a key costs a single-row INSERT: strict ids, bigserial, and what else people use."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.bench import fleet, ids
from tests.bench.measure import Row, alternate, compare, per

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.bench.measure import Scale, Side

    Connection = psycopg.Connection[Any]

NODE, TICKETS = 1, 0  # the servers of shard 5, and the other one
EPOCH_MS = 1_314_220_021_721

# The narrowest table that is still one: no second index, whose upkeep would hide the key's.
_TABLE = """
CREATE TABLE {name} (
    id {key} PRIMARY KEY {default}, user_id bigint NOT NULL, caption text NOT NULL
)
"""
_TABLES = {
    "strict": ("bigint", f"DEFAULT {ids.OURS}"),
    "bigserial": ("bigserial", ""),
    "published": ("bigint", f"DEFAULT {ids.THEIRS}"),
    "uuid": ("uuid", "DEFAULT gen_random_uuid()"),
    "ticket": ("bigint", ""),
    "snowflake": ("bigint", ""),
}
_NAMES = {
    "strict": "strict ids",
    "published": "published function",
    "uuid": "gen_random_uuid() key",
    "ticket": "ticket table on another server",
    "snowflake": "Snowflake ids made in Python",
}


class Snowflake:
    """Makes ids as application servers do: 41 bits of ms, 13 of worker, 10 of sequence."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._last = 0
        self._sequence = 0

    def __call__(self) -> int:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now <= self._last:
                now = self._last
                self._sequence = (self._sequence + 1) & 1023
                if self._sequence == 0:
                    while (now := time.time_ns() // 1_000_000) <= self._last:
                        pass
            else:
                self._sequence = 0
            self._last = now
            return (now - EPOCH_MS) << 23 | self._worker << 10 | self._sequence


@dataclass(frozen=True, slots=True)
class Application:
    """Sessions of an application: with its shard's node, and with the ticket server."""

    node: Connection
    tickets: Connection

    def insert(self, key: str) -> Callable[[int], object]:
        """Give what inserts a row, and learns its id, as an application does."""
        table = f"shard{ids.SHARD}.{key}_rows"
        values = f"INSERT INTO {table} (user_id, caption) VALUES (%s, %s) RETURNING id".encode()
        given = f"INSERT INTO {table} (id, user_id, caption) VALUES (%s, %s, %s)".encode()
        ticket = b"UPDATE ticket SET last = last + 1 RETURNING last"
        snowflake = Snowflake(ids.SHARD)
        node, tickets = self.node.execute, self.tickets.execute

        def by_default(user: int) -> object:
            return node(values, (user, "a caption")).fetchone()

        def by_ticket(user: int) -> object:
            row = tickets(ticket).fetchone()
            return node(given, (row[0] if row else None, user, "a caption"))

        def by_snowflake(user: int) -> object:
            return node(given, (snowflake(), user, "a caption"))

        return {"ticket": by_ticket, "snowflake": by_snowflake}.get(key, by_default)


def single_rows(scale: Scale) -> list[Row]:
    """Time single-row INSERTs with each kind of key against bigserial.

    Fair: the same narrow table for every key, the same driver at its defaults, one session,
    as the role `app`; fsync is on. With one INSERT a transaction, most of the time is the
    commit's, whoever makes the key; so there are rows with many INSERTs a transaction (the
    round trip is then the largest part), and with a loop inside the server, where nothing
    is left but the INSERT itself: no application runs that way, it shows the bare price.
    "unprepared" is what a pooler that does not know prepared statements leaves of a
    driver: the server parses, plans and inlines next_id() anew for every row.

    Not shown, and worth knowing: random UUIDs cost most when the index no longer fits in
    memory, which these tables never reach.
    """
    with fleet.running(2) as running, ExitStack() as stack:
        running.init(ids.SHARDS)
        with running.connect(NODE, user="postgres") as connection:
            connection.execute(ids.PUBLISHED.encode())
            for key, (kind, default) in _TABLES.items():
                name = f"shard{ids.SHARD}.{key}_rows"
                connection.execute(_TABLE.format(name=name, key=kind, default=default).encode())
        with running.connect(TICKETS, user="postgres") as connection:
            connection.execute("CREATE TABLE public.ticket (last bigint NOT NULL)")
            connection.execute("INSERT INTO public.ticket VALUES (0)")
            connection.execute("GRANT SELECT, UPDATE ON public.ticket TO app")
        running.settle()
        sessions = {
            how: Application(
                stack.enter_context(running.connect(NODE, prepare_threshold=threshold)),
                stack.enter_context(running.connect(TICKETS, prepare_threshold=threshold)),
            )
            # psycopg's default is to prepare what it has seen five times.
            for how, threshold in {"prepared": 5, "unprepared": None}.items()
        }
        rows = _rows(
            "INSERT, one a transaction",
            _sides(sessions["prepared"], scale.of(200, 10), together=False),
            scale.of(200, 10),
            rounds=scale.of(41, 2),
            target=1.15,
        )
        for how, session in sessions.items():
            rows += _rows(
                f"INSERT, many a transaction, {how}",
                _sides(session, scale.of(500, 20), together=True),
                scale.of(500, 20),
                rounds=scale.of(41, 2),
                target=1.15,
                alternatives=how == "prepared",
            )
        rows += _rows(
            "INSERT in a loop inside the server",
            _loops(sessions["prepared"].node, scale.of(20_000, 100)),
            scale.of(20_000, 100),
            rounds=scale.of(11, 2),
            target=None,
        )
    return rows


def _sides(application: Application, count: int, *, together: bool) -> dict[str, Side]:
    """Make a side for each key: `count` INSERTs, in one transaction or each in its own."""

    def of(key: str) -> Side:
        insert = application.insert(key)

        def one_by_one() -> float:
            began = time.perf_counter()
            for user in range(count):
                insert(user)
            return time.perf_counter() - began

        def in_a_transaction() -> float:
            began = time.perf_counter()
            with application.node.transaction():
                for user in range(count):
                    insert(user)
            return time.perf_counter() - began

        return in_a_transaction if together else one_by_one

    return {key: of(key) for key in _TABLES}


def _loops(connection: Connection, count: int) -> dict[str, Side]:
    """Make a side for each key that the server makes itself."""

    def of(key: str) -> Side:
        statement = (
            f"DO $$ BEGIN FOR i IN 1..{count} LOOP INSERT INTO shard{ids.SHARD}.{key}_rows "
            "(user_id, caption) VALUES (i, 'a caption'); END LOOP; END $$"
        ).encode()

        def side() -> float:
            began = time.perf_counter()
            connection.execute(statement)
            return time.perf_counter() - began

        return side

    return {key: of(key) for key in ("strict", "bigserial", "published", "uuid")}


def _rows(
    what: str,
    sides: dict[str, Side],
    count: int,
    *,
    rounds: int,
    target: float | None,
    alternatives: bool = True,
) -> list[Row]:
    """Time all sides and set each against bigserial; only ours has a target."""
    if not alternatives:
        sides = {key: sides[key] for key in ("strict", "bigserial")}
    for side in sides.values():
        side()  # warm: statements prepared, pages in memory
    times = alternate(sides, rounds)
    return [
        compare(
            what if key == "strict" else f"  {_NAMES[key]}",
            times[key],
            times["bigserial"],
            against="bigserial",
            shown=per(count, "row"),
            target=target if key == "strict" else None,
        )
        for key in sides
        if key != "bigserial"
    ]
