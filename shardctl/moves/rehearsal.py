"""The rehearsal of a streamed move: whether the copy is exact, and how long clients would wait.

It is the proof before the pause, on live data: both nodes are compared as they were at one moment
of the stream. Nothing of theirs is held up for long: a transaction that keeps the source's tables
from being locked is waited for between attempts, without a lock.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.access import fence, stream_fence
from shardctl.errors import Refused
from shardctl.libpq import reason_of
from shardctl.meter import sentences
from shardctl.moves import comparison, cutover, ddl, marks, prediction, stream_claim, wal
from shardctl.moves.comparison import SnapshotLost
from shardctl.moves.context import NodeRefused, Use
from shardctl.moves.plan import COPY_INSTEAD
from shardctl.moves.step import Step
from shardctl.moves.sub_step import RoundTrips, of_machine
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost
from shardctl.postgres.logical import moment
from shardctl.postgres.logical.moment import Side, Wanted
from shardctl.state import journal
from shardctl.state.ledger import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.comparison import Compared
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.moment import Moment
    from shardctl.topology.model import NodeName


_NAME = "rehearse"


class RehearsalRefused(Refused):
    """A move that its rehearsal rules out: shardctl undoes it."""


def prove(context: MoveContext) -> None:
    """Compare both sides, predict the pause, and note both in the journal.

    Raises RehearsalRefused, reverse_pause_too_long, rehearsal_snapshot_lost, and what
    `_taken` and `comparison.compare` raise.
    """
    plan, began, stop = context.plan, time.monotonic(), threading.Event()
    with wal.shown(context, gone=stop.set) as shown, wal.slot_required(context):
        moment, held, found = _compare(context, shown, stop)
    took_ms = (time.monotonic() - began) * 1000
    poolers = [of_machine(one) for one in context.topology.poolers.values()]
    round_trips = cutover.round_trips(context, max(poolers, default=0.0))
    parts = measured_parts(context, moment, round_trips)
    predicted = prediction.parts_ms(context.topology, plan, round_trips, found.tables, parts)
    report = {
        "time": written(moment.at),
        "first_time": written(moment.at),
        "tables": found.tables,
        "rows": found.rows,
        "size_bytes": found.bytes,
        "differing": [*found.differing],
        "elapsed_ms": round(took_ms, 1),
        **held,
        "predicted_pause_ms": round(sum(predicted.values()), 1),
        "parts_ms": {name: round(ms, 1) for name, ms in parts.items()},
    }
    _note(context, report)
    _judge(context, report)


def until(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of a move that ends with its rehearsal."""
    names = [step.name for step in steps]
    return steps[: names.index(_NAME) + 1]


def _compare(
    context: MoveContext, shown: Progress, stop: threading.Event
) -> tuple[Moment, dict[str, float], Compared]:
    """Compare all rows as they were at one moment of the stream; raises rehearsal_snapshot_lost."""
    plan, max_rate = context.plan, context.plan.options.max_rate
    with _taken(context) as (moment, report):
        held = {plan.source: moment.source, plan.target: moment.target}
        named = dict.fromkeys(held, plan.schemas)
        try:
            with comparison.opened(context, held, stop, strict=True) as sessions:
                found = comparison.compare(sessions, named, shown, max_rate)
        except SnapshotLost:
            raise Refused(
                "rehearsal_snapshot_lost",
                f"move {plan.id}: node {plan.source} or node {plan.target} has ended the sessions "
                "that held the snapshots of the rehearsal",
                hint="check in their logs what ends sessions of `database.user`, then run "
                "`shardctl moves resume`: shardctl compares all tables again",
            ) from None
        return moment, report, found


def _note(context: MoveContext, report: dict[str, Any]) -> None:
    """Write the report into both journals."""
    plan = context.plan
    with context.using(plan.source) as session:
        move = journal.find(session, plan.id)
        if move is None:  # pragma: no cover  # it was read a moment ago
            raise AssertionError
        journal.note(session, move, report=(move.report or {}) | {journal.REHEARSAL: report})
        move = journal.find(session, plan.id)
    if move is not None:
        with context.using(plan.target) as session:
            journal.copy(session, move)


def _judge(context: MoveContext, report: dict[str, Any]) -> None:
    """Refuse a copy that differs, and a pause that is predicted to be too long.

    Raises RehearsalRefused, or reverse_pause_too_long of a reverse, which stops.
    """
    plan, differing = context.plan, report["differing"]
    if differing:
        again = "start the move again" if plan.reverses is None else COPY_INSTEAD
        raise RehearsalRefused(
            "rehearsal_differs",
            f"move {plan.id}: in its rehearsal, source and target differed: "
            f"{sentences(differing)}; shardctl aborts the move",
            hint="check whether something else has written on the target or dropped rows from the "
            f"stream, then {again}; if it happens again, please report it as a bug",
        )
    predicted_ms, most_ms = report["predicted_pause_ms"], plan.options.max_pause_s * 1000
    if predicted_ms <= most_ms:
        return
    long = f"{predicted_ms:,.0f} ms, but --max-pause is {most_ms:,.0f} ms"
    if plan.reverses is not None:
        # To abort it would end the possibility to reverse, for what may be over in a minute.
        raise Refused(
            "reverse_pause_too_long",
            f"move {plan.id}: after its rehearsal, clients are predicted to wait {long}",
            hint=f"run `shardctl moves resume {plan.id}` when the servers have less to do, or with "
            "a longer --max-pause",
        )
    raise RehearsalRefused(
        "rehearsal_pause_too_long",
        f"move {plan.id}: after its rehearsal, clients are predicted to wait {long}; shardctl "
        "aborts the move",
        hint="start the move again with a longer --max-pause, move fewer shards at a time, or "
        "move them when the servers have less to do",
    )


LOCK_TIMEOUT_MS = 25
"""How long an attempt makes clients wait that want a table; an autovacuum gives way in that time
where this role may set `deadlock_timeout`."""
_BETWEEN_S = 0.2
"""Clients that an attempt has held up go on in that time."""
_NEAR_S = 600.0
_BEFORE, _SEEN = "before rehearsal", "rehearsal"


@contextmanager
def _taken(context: MoveContext) -> Iterator[tuple[Moment, dict[str, float]]]:
    """Take the snapshots, and hold them until the block ends; give the report of that, too.

    It has how many attempts it took, and for how long the one that held writers up for longest did
    so, in all and because transactions were open. Raises WritersLeft, rehearsal_blocked,
    MarkNotSeen, StructureChanged, NodeLost.
    """
    plan = context.plan
    with ExitStack() as stack:

        def opened(node: NodeName) -> Connection:
            return stack.enter_context(closing(context.beside(node)))

        source = Side(opened(plan.source), opened(plan.source))
        target = Side(opened(plan.target), opened(plan.target))
        yield _take(context, source, target)


def _take(context: MoveContext, source: Side, target: Side) -> tuple[Moment, dict[str, float]]:
    plan, began, told = context.plan, time.monotonic(), False
    attempts, failed_ms, timeout_ms = 0, 0.0, LOCK_TIMEOUT_MS
    with context.using(plan.source) as session:
        tables = len(fence.oids(session, plan.schemas))
    while True:
        attempts += 1
        wanted = Wanted(
            plan.slot,
            plan.id,
            plan.schemas,
            tables,
            mark=f"{_SEEN} {secrets.token_hex(4)}",
            before=marks.come_near(context, _BEFORE, seconds=_NEAR_S),
            lock_timeout_ms=timeout_ms,
        )
        try:
            taken = _attempt(context, source, target, wanted)
        except moment.NotLocked as error:
            failed_ms = max(failed_ms, error.held_ms)
            with context.on(plan.source):
                there = blocking.holding(session, plan.schemas, but=blocking.READERS)[:3]
                if there and not told:
                    told = True
                    context.notice(
                        f"node {plan.source}: the rehearsal waits for {'; '.join(there)}"
                    )
                # A cutover gives the same time to transactions that are open.
                if time.monotonic() > began + plan.options.max_pause_s:
                    why = "; ".join(there) or str(error)
                    timeout_ms = _clear(context, session, why, began, timeout_ms)
            time.sleep(_BETWEEN_S)
        else:
            held_ms, waited_ms = max((taken.held_ms, taken.waited_ms), (failed_ms, failed_ms))
            return taken, {
                "attempts": attempts,
                "writers_held_ms": round(held_ms, 1),
                "waited_ms": round(waited_ms, 1),
            }


def _clear(
    context: MoveContext, session: Connection, why: str, began: float, timeout_ms: int
) -> int:
    """End what is in the way, as far as that is allowed; give how long the next attempt waits.

    Raises WritersLeft, rehearsal_blocked.
    """
    plan, options = context.plan, context.plan.options
    if left := fence.lasting(session, plan.schemas, since=began):
        if not options.terminate or options.rehearse_only or None in left:
            raise fence.WritersLeft(plan.source, left, [why])
        for pid in left:
            session.execute("SELECT pg_terminate_backend(%s)", [pid])
        return timeout_ms
    yields_ms = blocking.yields_ms(session, plan.schemas)
    if yields_ms is None or timeout_ms >= yields_ms:
        raise Refused(
            "rehearsal_blocked",
            f"node {plan.source}: the rehearsal could not lock the moved tables within "
            f"{options.max_pause_s:g} s: {why}",
            hint="wait until that has ended, then run `shardctl moves resume`",
        )
    # Only an automatic vacuum is left, which needs that time where this role may not set it.
    return yields_ms


def _attempt(context: MoveContext, source: Side, target: Side, wanted: Wanted) -> Moment:
    """Take the snapshots, or raise NotLocked; raises MarkNotSeen, NodeLost, NodeRefused, too."""
    plan = context.plan
    try:
        return moment.take(source, target, wanted)
    except moment.NotSeen as error:
        raise marks.MarkNotSeen(plan.target, wanted.mark, marks.trouble(context, [])) from error
    except psycopg.Error as error:
        for side, node in ((source, plan.source), (target, plan.target)):
            if side.lost:
                raise NodeLost(node, reason_of(error)) from error
        raise NodeRefused(plan.source, reason_of(error)) from error


_ROUNDS, _ENOUGH, _ROUNDS_S = 9, 3, 2.0
_MARK, _MARK_S = "measured", 10.0


def measured_parts(
    context: MoveContext, moment: Moment, round_trips: RoundTrips
) -> dict[str, float]:
    """Measure what takes longer with more tables and rows, in ms, while clients write.

    The medians of some rounds, each of all parts: a busy machine has quiet and loud moments.
    `moment` has the locks, as they were. Round trips are left out.
    """
    plan = context.plan
    with context.using(plan.source) as source:
        _, known = stream_fence.known(source, plan.schemas)
        look: Callable[[], object] = partial(stream_fence.untouched, source, known)
        if not known:  # the whole digest is read then
            look = partial(stream_fence.left, source, plan.id, plan.schemas)
        schemas = sql.SQL(", ").join(map(sql.Literal, plan.schemas))
        read = partial(source.execute, comparison.QUERIES["sequences"].format(schemas=schemas))
    with context.using(plan.target, Use.lock) as target:
        stream_claim.make(context, target)
    locked_ms = moment.held_ms - moment.waited_ms
    of_source = {"lock_and_mark": [locked_ms], "structure": [], "sequences": []}
    of_target: dict[str, list[float]] = {"arrive": [], "claim": []}
    until = time.monotonic() + _ROUNDS_S
    for number in range(_ROUNDS):
        if number >= _ENOUGH and time.monotonic() > until:
            break
        with context.on(plan.source):
            of_source["structure"].append(_ms(look))
            of_source["sequences"].append(_ms(read))
        mark = marks.send(context, _MARK)
        deadline = time.monotonic() + _MARK_S
        arrival = partial(marks.wait_for_sent, context, mark, deadline=deadline)
        of_target["arrive"].append(_ms(arrival))
        with context.on(plan.target):
            of_target["claim"].append(stream_claim.measured_ms(context, target))
    return {
        name: max(0.0, statistics.median(took) - way)
        for parts, way in ((of_source, round_trips.source), (of_target, round_trips.target))
        for name, took in parts.items()
    }


def _ms(ask: Callable[[], object]) -> float:
    began = time.monotonic()
    ask()
    return (time.monotonic() - began) * 1000


_DONE = "rehearsed"


def probe(context: MoveContext) -> bool:
    """Return whether this copy was rehearsed; the target forgets that with the copy."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        return marks.seen(context.session(plan.target), plan.id, _DONE)


def run(context: MoveContext) -> None:
    """Compare all rows at one moment of the stream, and predict the pause.

    Raises StructureChanged, and what `marks.require_copy` and `prove` raise.
    """
    plan = context.plan
    ddl.require_same(context, plan.schemas)
    _require_copy(context)
    try:
        prove(context)
    except RehearsalRefused:
        # One that cannot go on from its copy is copied to again, whatever it lacks.
        _require_copy(context)
        raise
    with context.on(plan.target):
        marks.put(context.session(plan.target), plan.id, _DONE)


def _require_copy(context: MoveContext) -> None:
    target = context.plan.target
    with context.on(target):
        marks.require_copy(context.session(target), context.plan)


STEP = Step(
    _NAME,
    "compares every row at one moment of the stream while clients write, and measures what the "
    "cutover will take",
    probe,
    run,
)
