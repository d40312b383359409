"""Small transactions that need locks: what others hold is waited for, a moment at a time.

Clients that want the same lock queue behind a session that waits for it. So it gives up after a
moment, and they get their turn. The lock table belongs to the applications, too: no transaction
takes more than a part of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.postgres import blocking, queries
from shardctl.postgres.connection import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection

QUICK_MS = 50
"""Other sessions that need the same lock wait behind shardctl for so long."""
_HELD_UP = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,  # it has waited for too many other locks
    psycopg.errors.DeadlockDetected,
    psycopg.errors.InternalError_,  # a GRANT at the same moment
    psycopg.errors.UndefinedTable,  # dropped or renamed by another session since it was listed
)

Piece = TypeVar("Piece", bound=Hashable)

Item = TypeVar("Item")

_ALONE = sql.SQL("BEGIN; SET LOCAL lock_timeout TO {timeout}; {statement}; COMMIT")
END_IT = (
    "wait until that has ended, as a pg_dump, or end it, then run the command again; if a move "
    "stopped by this, `shardctl moves resume`"
)
_SHARE = 4
"""A session that finds the table full fails, so a statement takes a fourth of it at most."""


@dataclass(slots=True)
class Patient(Generic[Piece]):
    """Does pieces of work, many at once, and those that sessions hold up singly, until a deadline.

    Raises psycopg.Error where the session is lost; any other error is of one piece.
    """

    do: Callable[[Sequence[Piece], int], Mapping[Piece, str]]
    """Does some in one transaction, which waits for a lock that many ms; gives those that cannot
    be done, and why."""
    held: Callable[[Sequence[Piece]], Mapping[Piece, Held]]
    """Gives, for each piece that a session holds up at this moment, the lock that is in the way."""
    waits: Callable[[str | None], object] = lambda _: None
    """Shows who is waited for at this moment, or None."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when nothing more is to be done."""
    waiting: list[Piece] = field(default_factory=list)
    left: dict[Piece, str] = field(default_factory=dict)

    def together(self, batch: Sequence[Piece]) -> None:
        """Do some at once, but for those that other sessions hold up."""
        todo = list(batch)
        while todo and not self.stop.is_set():
            if self._done(todo, QUICK_MS):
                return
            held = self.held(todo)
            # Where no session is seen any more, each is tried singly.
            busy = [piece for piece in todo if piece in held] or todo
            self.waiting += busy
            todo = [piece for piece in todo if piece not in busy]
        self.waiting += todo

    def singly(self, deadline: float, *, slowest_ms: int = QUICK_MS) -> dict[Piece, str]:
        """Do the rest until a `deadline` on the monotonic clock; give all that are left, and why.

        It waits for a lock for `slowest_ms` at most where sessions hold it all the time, or until
        an autovacuum gives way.
        """
        timeout_ms = QUICK_MS
        while self.waiting and not self.stop.is_set():
            self.waiting = [piece for piece in self.waiting if not self._alone(piece, timeout_ms)]
            if not self.waiting or time.monotonic() > deadline:
                break
            # Those who were held up get their turn.
            self.stop.wait(timeout_ms / 1000)
            timeout_ms = min(2 * timeout_ms, slowest_ms)
        self.waits(None)
        why = "interrupted" if self.stop.is_set() else "locked by other sessions the whole time"
        held = self.held(self.waiting) if self.waiting else {}
        named = {one: f"{lock.by} is in the way" for one, lock in held.items()}
        return dict.fromkeys(self.waiting, why) | named | self.left

    def _alone(self, piece: Piece, timeout_ms: int) -> bool:
        """Try one; return whether it is done with, for better or worse."""
        held = self.held([piece]).get(piece)
        self.waits(held and str(held.by))
        return self._done([piece], (held and held.yields_ms) or timeout_ms)

    def _done(self, some: Sequence[Piece], timeout_ms: int) -> bool:
        """Try some at once; return whether none of them has to be tried again."""
        try:
            self.left |= self.do(some, timeout_ms)
        except _HELD_UP:
            return False
        except psycopg.Error as error:
            if is_lost(error):
                raise
            if len(some) > 1:
                return False
            self.left[some[0]] = reason_of(error)
        return True


def each_table(
    session: Connection,
    tables: Mapping[int, tuple[str, str]],
    statements: Mapping[int, sql.Composed],
    deadline: float,
) -> str:
    """Execute a statement for each table, by its OID, in a transaction of its own.

    `tables` has their schemas and names. Each waits for all who use the table, a moment at a time,
    until `deadline` on the monotonic clock. Names what is left, and who is in the way; raises
    psycopg.Error as `Patient` does.
    """
    named = list({schema for schema, _ in tables.values()})

    def do(some: Sequence[int], timeout_ms: int) -> dict[int, str]:
        timeout = sql.Literal(f"{timeout_ms}ms")
        for one in some:
            message = _ALONE.format(timeout=timeout, statement=statements[one])
            queries.rows_of_last(session, message)
        return {}

    def held(some: Sequence[int]) -> dict[int, Held]:
        found = blocking.held(session, named, tables=some)
        return {one.oid: one for one in reversed(found) if one.oid is not None}

    patient = Patient(do, held)
    for table in statements:
        patient.together([table])
    left = patient.singly(deadline)
    names = [".".join(tables[one]) for one in left]
    return f"{listed(names, most=1)}: {min(left.values())}" if left else ""


def lockable(connection: Connection) -> int:
    """Ask how many relations one statement may lock."""
    (slots,) = queries.one(
        connection,
        "SELECT current_setting('max_locks_per_transaction')::integer"
        " * (current_setting('max_connections')::integer"
        " + current_setting('max_prepared_transactions')::integer)",
    )
    return max(1, int(slots) // _SHARE)


def chunks(
    items: Iterable[Item], most: int, weight: Callable[[Item], int] = lambda _: 1
) -> Iterator[list[Item]]:
    """Part items into lists that weigh at most `most` together, and hold one item at the least.

    >>> list(chunks("abcde", 2)), list(chunks([3, 3, 3, 9, 1], 7, lambda item: item))
    ([['a', 'b'], ['c', 'd'], ['e']], [[3, 3], [3], [9], [1]])
    """
    batch: list[Item] = []
    weighs = 0
    for item in items:
        if batch and weighs + weight(item) > most:
            yield batch
            batch, weighs = [], 0
        batch.append(item)
        weighs += weight(item)
    if batch:
        yield batch
