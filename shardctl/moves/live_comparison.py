"""Compare the moved tables on source and target, row for row, in the snapshots of one moment.

What is proved is said for each table: at the moment of its proof the target had the rows that the
source had. A comparison that was interrupted goes on with the tables that are left, at a later
moment; those that were equal keep their result, with its time.

Clients write meanwhile, so nothing of theirs is held up for long: a transaction that keeps the
source's tables from being locked is waited for between attempts, without a lock.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence
from shardctl.errors import Interrupted, Refused
from shardctl.libpq import reason_of
from shardctl.meter import BYTES, SHOWN, listed
from shardctl.moves import comparison, marks
from shardctl.moves.comparison import Sessions
from shardctl.moves.context import NodeRefused
from shardctl.moves.marks import Watch
from shardctl.moves.preflight import wal
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost
from shardctl.postgres.logical import moment
from shardctl.postgres.logical.copying import Throttle
from shardctl.postgres.logical.moment import Side, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardctl.fanout import Progress
    from shardctl.moves.comparison import Asked, Sum, Table
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.moment import Moment
    from shardctl.topology.model import NodeName

_EVERY_S = 1.0
_COMPARED = "compared"
LOCK_TIMEOUT_MS = 25
"""How long an attempt makes clients wait that want a table; an autovacuum gives way in that time
where this role may set `deadlock_timeout`."""
_BETWEEN_S = 0.2
"""Clients that an attempt has held up go on in that time."""
_NEAR_S = 600.0
_BEFORE, _MARK = "before rehearsal", "rehearsal"


@dataclass(frozen=True, slots=True)
class Equal:
    """A table that was equal on both nodes: its rows, its bytes, and the moment of its proof."""

    rows: int
    bytes: int
    at: datetime


class Results:
    """The tables that were equal, by name; `session` is with the target, and of no other use."""

    def __init__(self, session: Connection, move: str) -> None:
        self._session, self._move = session, move
        self._lock = threading.Lock()
        self._new: dict[str, Equal] = {}
        self._written = time.monotonic()
        kept = marks.notes(session, move, _COMPARED)
        self._next = max(kept, default=0) + 1
        self.equal = {
            name: Equal(rows, size, datetime.fromisoformat(at))
            for note in kept.values()
            for name, (rows, size, at) in note["tables"].items()
        }

    def add(self, table: str, found: Equal) -> None:
        """Keep a result; it is on the target within about a second, or after `flush`."""
        with self._lock:
            self.equal[table] = self._new[table] = found
            if time.monotonic() - self._written > _EVERY_S:
                self._write()

    def flush(self) -> None:
        """Write what is not on the target yet."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._new:
            return
        tables = {n: [one.rows, one.bytes, one.at.isoformat()] for n, one in self._new.items()}
        note = {"tables": tables}
        marks.put(self._session, self._move, _COMPARED, attempt=self._next, note=note)
        self._next += 1
        self._new, self._written = {}, time.monotonic()


_ROWS = 256
"""About how many rows a group of keys has."""
_BITS = 16


def keys_of(sessions: Sessions, asked: Asked, table: Table, rows: int) -> str:
    """Name the first keys that only one node has, and those whose rows differ.

    `rows` is about how many rows the table has; empty where the table has no key.
    """
    plan = sessions.context.plan
    source, target = plan.source, plan.target
    place = sql.Identifier(table.on_source, table.name).as_string(asked[source][0])
    about = f"table {table} or a system catalog"
    found = sessions.ask(
        source,
        asked[source][0],
        comparison.QUERIES["key"].format(table=sql.Literal(place)),
        about=about,
    )
    if not found:
        return ""
    columns = [sql.SQL("t.{}").format(sql.Identifier(name)) for (name,) in found]
    key = sql.SQL("ROW({})").format(sql.SQL(", ").join(columns))
    mask = (1 << min(_BITS, max(0, (rows // _ROWS).bit_length()))) - 1

    def ask(node: NodeName, name: str, **more: sql.Composable) -> set[tuple[object, ...]]:
        query = comparison.QUERIES[name].format(
            key=key,
            row_hash=table.row(),
            key_hash=table.row([name for (name,) in found]),
            mask=sql.Literal(mask),
            schema=sql.Identifier(table.schema if node == target else table.on_source),
            table=sql.Identifier(table.name),
            **more,
        )
        with sessions.context.on(node):
            return set(sessions.ask(node, asked[node][0], query, about=about))

    groups = {number for number, *_ in ask(source, "groups") ^ ask(target, "groups")}
    some = sql.Literal(sorted(groups, key=str)[:SHOWN])
    here, there = _sums(ask(source, "rows", groups=some)), _sums(ask(target, "rows", groups=some))
    names = [name for (name,) in found]
    return _said(source, target, ", ".join(names), here, there)


def _sums(rows: set[tuple[object, ...]]) -> dict[object, object]:
    return {key: total for key, total in rows}  # noqa: C416  # mypy does not see pairs otherwise


def _said(
    source: NodeName,
    target: NodeName,
    columns: str,
    here: Mapping[object, object],
    there: Mapping[object, object],
) -> str:
    """Write it for people.

    >>> _said("a", "b", "id", {"(1)": 1, "(2)": 2, "(3)": 3}, {"(2)": 2, "(3)": 4, "(5)": 5})
    'key (id): (1) only on a, (5) only on b, (3) differs'
    """
    parts = [
        *(f"{key} only on {source}" for key in sorted(here.keys() - there.keys(), key=str)),
        *(f"{key} only on {target}" for key in sorted(there.keys() - here.keys(), key=str)),
        *(
            f"{key} differs"
            for key in sorted(here.keys() & there.keys(), key=str)
            if here[key] != there[key]
        ),
    ]
    return f"key ({columns}): {listed(parts)}" if parts else ""


BLOCKS = 8192
"""Blocks that one statement sums up, 64 MB: so progress is seen, and a rate is kept."""
_LEAST_BLOCKS = 128
_BLOCK = 8192


def compare(
    context: MoveContext,
    moment: Moment,
    results: Results,
    shown: Progress,
    stop: threading.Event,
) -> list[str]:
    """Compare the tables that have no result; return those that differ, in words.

    Sums of equal tables go into `results`. Raises SnapshotLost, Interrupted, NodeLost.
    """
    plan = context.plan
    sessions = Sessions(context, {plan.source: moment.source, plan.target: moment.target}, stop)
    with comparison.opened(sessions) as asked:
        named = dict.fromkeys(asked, plan.schemas)
        found = comparison.tables(sessions, asked, named, plan.schemas)
        if absent := comparison.unlike(plan, found):
            return absent
        tables = [one for one in found[plan.source] if str(one) not in results.equal]
        total = sum(table.blocks for table in tables) * _BLOCK
        for node in asked:
            shown.expect(node, "comparing", total, BYTES)
        try:
            one = _summing(sessions, asked, results, shown, moment)
            sums = comparison.on_both(sessions, asked, one, tables)
        finally:
            results.flush()
        if stop.is_set():
            raise Interrupted("stopped while the copies were compared")
        described: list[str] = []
        for table, here, there in zip(tables, sums[plan.source], sums[plan.target], strict=True):
            if here != there:
                text = f"{table}: {here.rows:,} rows on {plan.source}, "
                text += f"{there.rows:,} on {plan.target}"
                keys = len(described) < SHOWN and keys_of(sessions, asked, table, here.rows)
                described.append(f"{text} ({keys})" if keys else text)
        return described


def _summing(
    sessions: Sessions,
    asked: comparison.Asked,
    results: Results,
    shown: Progress,
    moment: Moment,
) -> Callable[[NodeName, Connection, Table], Sum]:
    """Return what sums up a table, and keeps the result of one that both nodes have alike."""
    given = sessions.context.plan.options.max_rate
    rate = wal.rate(given) if given else None
    size = BLOCKS if rate is None else min(BLOCKS, max(_LEAST_BLOCKS, rate // _BLOCK))
    throttles = {node: Throttle(rate, sessions.stop) for node in asked}
    half: dict[Table, Sum] = {}
    lock = threading.Lock()

    def one(node: NodeName, session: Connection, table: Table) -> Sum:
        def passed(blocks: int) -> None:
            shown.advance(node, blocks * _BLOCK)
            throttles[node].passed(blocks * _BLOCK)

        try:
            found = comparison.sum_up(sessions, node, session, table, blocks=size, passed=passed)
            with lock:
                other = half.setdefault(table, found)
                if other is not found and other == found:
                    results.add(str(table), Equal(found.rows, table.blocks * _BLOCK, moment.at))
        except BaseException:
            sessions.stop.set()  # the other node need not go on
            raise
        return found

    return one


@dataclass(frozen=True, slots=True)
class LiveProof:
    """A moment at which both sides can be compared, and how many attempts it took.

    The attempt that held writers up for longest did so for `held_ms`, and for `waited_ms` of that
    because transactions were open.
    """

    moment: Moment
    attempts: int
    held_ms: float
    waited_ms: float


@contextmanager
def taken(context: MoveContext) -> Iterator[LiveProof]:
    """Take the snapshots, and hold them until the block ends.

    Raises WritersLeft, rehearsal_blocked, MarkNotSeen, StructureChanged, NodeLost.
    """
    plan = context.plan
    with ExitStack() as stack:

        def opened(node: NodeName) -> Connection:
            return stack.enter_context(closing(context.beside(node)))

        source = Side(opened(plan.source), opened(plan.source))
        target = Side(opened(plan.target), opened(plan.target))
        yield _take(context, source, target)


def _take(context: MoveContext, source: Side, target: Side) -> LiveProof:
    plan, waiting, attempts, failed_ms = context.plan, _Waiting(context), 0, 0.0
    while True:
        attempts += 1
        wanted = Wanted(
            plan.slot,
            plan.id,
            plan.schemas,
            len(waiting.tables),
            mark=f"{_MARK} {secrets.token_hex(4)}",
            before=marks.come_near(context, _BEFORE, seconds=_NEAR_S),
            lock_timeout_ms=waiting.lock_timeout_ms,
        )
        try:
            taken = _attempt(context, source, target, wanted)
        except moment.NotLocked as error:
            failed_ms = max(failed_ms, error.held_ms)
            waiting.after(error)
            time.sleep(_BETWEEN_S)
        else:
            longest = max((taken.held_ms, taken.waited_ms), (failed_ms, failed_ms))
            return LiveProof(taken, attempts, *longest)


class _Waiting:
    """Decides after an attempt that did not get its locks how the next one tries."""

    def __init__(self, context: MoveContext) -> None:
        self._context = context
        self._began = time.monotonic()
        # A cutover gives the same time to transactions that are open.
        self._deadline = self._began + context.plan.options.max_pause_s
        self._told = False
        self.lock_timeout_ms = LOCK_TIMEOUT_MS
        with context.on(context.plan.source):
            self._session = context.session(context.plan.source)
            self.tables = fence.oids(self._session, context.plan.schemas)

    def after(self, error: moment.NotLocked) -> None:
        """Return if there is to be another attempt; raises WritersLeft, rehearsal_blocked."""
        plan = self._context.plan
        with self._context.on(plan.source):
            there = blocking.holding(self._session, plan.schemas, but=blocking.READERS)[:3]
            if there and not self._told:
                self._told = True
                self._context.notice(
                    f"node {plan.source}: the rehearsal waits for {'; '.join(there)}"
                )
            if time.monotonic() > self._deadline:
                self._last(error, there)

    def _last(self, error: moment.NotLocked, there: list[str]) -> None:
        """End what is in the way, as far as that is allowed."""
        options, source = self._context.plan.options, self._context.plan.source
        left = fence.lasting(self._session, self.tables, since=self._began)
        if left:
            if not options.terminate or options.rehearse_only or None in left:
                raise fence.WritersLeft(source, left, there) from error
            for pid in left:
                self._session.execute("SELECT pg_terminate_backend(%s)", [pid])
            return
        yields_ms = blocking.yields_ms(self._session, self._context.plan.schemas)
        if yields_ms is None or self.lock_timeout_ms >= yields_ms:
            raise Refused(
                "rehearsal_blocked",
                f"node {source}: the rehearsal could not lock the moved tables within "
                f"{options.max_pause_s:g} s: {'; '.join(there) or error}",
                hint="wait until that has ended, then run `shardctl moves resume`",
            ) from error
        # Only an automatic vacuum is left, which needs that time where this role may not set it.
        self.lock_timeout_ms = yields_ms


def _attempt(context: MoveContext, source: Side, target: Side, wanted: Wanted) -> Moment:
    """Take the snapshots, or raise NotLocked; raises MarkNotSeen, NodeLost, NodeRefused, too."""
    plan = context.plan
    try:
        return moment.take(source, target, wanted)
    except moment.NotSeen as error:
        raise marks.MarkNotSeen(plan.target, wanted.mark, Watch(context).trouble()) from error
    except psycopg.Error as error:
        for side, node in ((source, plan.source), (target, plan.target)):
            if side.lost:
                raise NodeLost(node, reason_of(error)) from error
        raise NodeRefused(plan.source, reason_of(error)) from error
