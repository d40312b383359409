"""The cutover: the short part of a move in which ownership changes.

The order is the promise. Up to the commit of `promoting` everything can be undone, by this
process, by the guard in the source, or by another operator: whichever commits first wins.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from shardctl import fanout
from shardctl.access import fence, write_fence
from shardctl.errors import Unfinished
from shardctl.moves import handover, interrupts, prediction, undoing
from shardctl.moves import plan as planning
from shardctl.moves import source_guard as guard
from shardctl.moves.budget import REST_S, Budget
from shardctl.moves.distance import Distance, shortest_ms
from shardctl.moves.gates import Gates
from shardctl.moves.gates_refusals import PauseFailed, PauseLost
from shardctl.moves.preflight import schemas as preflight_schemas
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import clone as clones
from shardctl.postgres import connection, replay
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from datetime import datetime

    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection

_FAIR_S = 0.1
"""How long transactions have at least to end, however little of the budget is left."""
_ARMING_S = 3.0
"""How long arming the guards on poolers' hosts may take without costing the budget something."""
_STRAGGLERS_S = 1.0
"""What is kept of the budget for ending transactions that go on."""
_GUARDS_S = 5.0
"""How long the guards on poolers' hosts may take to ask the target, and to route."""


class NotPromoting(Unfinished):
    """Somebody or something else decided about the move at the same moment."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it was called off before the point of no return",
            hint="`shardctl moves resume` tries again",
        )


def run(world: World) -> None:
    """Change the ownership of the move's shards; clients of the poolers wait meanwhile.

    Where the move is read-only, writes are refused meanwhile, and reads wait for the end alone.
    The target streams from the source, both nodes' locks are held, and the journal says
    `reserved` or `undone`. Raises ShardctlError: before the point of no return with everything
    undone, after it with exit code 3, and then `handover.complete` finishes it. Ctrl-C is
    heeded where it can be; raises Interrupted.
    """
    plan, timeline = world.plan, world.timeline
    with (
        interrupts.deferred(world.notice) as interrupt,
        Gates(world.topology, world.after, plan, purpose=world.purpose) as gates,
    ):
        with timeline.span("open consoles"):
            gates.open()
            with world.on(plan.target):  # a login takes longer than all that is asked there
                world.session(plan.target, "snapshot")
            with world.on(plan.source):
                guard.session(world)
            leaving = handover.warm(world)
            if plan.options.read_only:
                with world.on(plan.source):
                    write_fence.prepare(world.session(plan.source))
            world.distance = _distance(world, gates)
        prediction.require_time(world.topology, plan, world.distance)
        with timeline.span("stage files"):
            gates.stage()
        question = _question(world)
        began = time.monotonic()
        with timeline.span("rehearse guards"):
            replay.again(lambda: gates.rehearse(question))
        # Arming takes about as long: on far hosts longer than a whole budget may be.
        arming_s = min(2 * (time.monotonic() - began), _ARMING_S)
        budget = Budget(plan.options.max_pause_s, _revision(world), interrupt, world.distance)
        try:
            with timeline.span("arm guards"):
                began = time.monotonic()
                after_s = plan.options.max_pause_s + arming_s + undoing.GUARD_LAG_S
                gates.arm(after_s=after_s, question=question)
                gates.hold_files(seconds=after_s)
                # Those guards fire after the source's, so a budget that begins late is shorter.
                budget.begin(min(time.monotonic(), began + arming_s))
                guard.arm(world, budget, guards_s=arming_s + undoing.GUARD_LAG_S + _GUARDS_S)
            with world.on(plan.source):
                not_after = fence.not_after(world.session(plan.source), budget.latest("drain"))
            fencing_at = time.monotonic()
            lsn = _until_drained(world, gates, budget, not_after)
            _point_of_no_return(world, gates, budget, lsn)
        except BaseException:
            undoing.take_back(world, gates, budget)
            raise
        handover.promote(world)
        if not handover.claim(world, lsn, leaving):
            handover.open_up(world)

        def hold() -> None:
            _hold_readers(world, gates, budget)

        def route() -> None:
            _route(world, gates, budget, fencing_at)

        handover.conclude(world, gates, route, hold if plan.options.read_only else None)
        interrupt.require_none(
            f"move {plan.id}: interrupted after its cutover: node {plan.target} serves the shards"
        )


def _until_drained(world: World, gates: Gates, budget: Budget, not_after: datetime) -> str:
    """Fence, drain, mark, and wait until the target has it all; give the WAL position.

    `not_after` is when the fence has to be up, on the source's clock.
    """
    plan, timeline, source = world.plan, world.timeline, world.plan.source
    session = world.session(source)
    if plan.options.read_only:
        _refuse_writes(world, budget, not_after)
    else:
        _hold_all(world, gates, budget, not_after)
    with timeline.span("mark"), world.on(source):
        lsn = journal.mark_drained(session, plan.id, revision=budget.revision + 1)
    if lsn is None:
        raise NotPromoting(plan.id, undoing.state(world))
    with timeline.span("replay"):
        handover.wait_for_replay(world, lsn, deadline=budget.latest("snapshot"))
    with timeline.span("snapshot"):
        handover.hold_snapshot(world)
    return lsn


def _hold_all(world: World, gates: Gates, budget: Budget, not_after: datetime) -> None:
    """Let all clients of the poolers wait, and all others find nothing on the source."""
    plan, timeline, source = world.plan, world.timeline, world.plan.source
    session = world.session(source)
    with timeline.span("logins"):
        gates.await_logins()
    budget.require("pause")
    with timeline.span("pause"):
        world.require_locks()  # whoever has taken them has ended our guards, too
        _pause(world, gates, budget.latest("fence"))
    budget.require("fence")
    with timeline.span("fence"), world.on(source):
        fence.put_up(
            session,
            source,
            plan.id,
            revision=budget.revision,
            deadline=budget.latest("drain"),
            not_after=not_after,
        )
    with timeline.span("drain"), world.on(source):
        _drain(world, session, budget)


def _refuse_writes(world: World, budget: Budget, not_after: datetime) -> None:
    """Let all writes be refused, and nobody wait; with `--terminate`, end those that go on."""
    plan, timeline, source = world.plan, world.timeline, world.plan.source
    session = world.session(source)
    budget.require("fence")

    def put_up(kept_s: float) -> None:
        write_fence.put_up(
            session,
            source,
            plan.id,
            plan.schemas,
            revision=budget.revision,
            deadline=budget.latest("drain") - kept_s,
            not_after=not_after,
        )

    with timeline.span("fence"):
        world.require_locks()
        with world.on(source):
            try:
                put_up(_kept(world))
            except fence.WritersLeft as error:
                _terminate(world, error)
                put_up(0)
    with timeline.span("drain"), world.on(source):
        write_fence.drain(session, source, plan.schemas, deadline=budget.latest("mark"))


def _hold_readers(world: World, gates: Gates, budget: Budget) -> None:
    """Pause the poolers when the target owns the shards: who reads behind them is to read there.

    A transaction that goes on until the guards fire keeps nobody from being served; it only reads.
    """
    gates.await_logins()
    try:
        # The guards on the poolers' hosts fire that much after the budget's end.
        _pause(world, gates, budget.deadline + undoing.GUARD_LAG_S - REST_S)
    except (PauseFailed, PauseLost) as error:
        world.notice(f"{error.message}; they only read, and have to begin anew")


def _pause(world: World, gates: Gates, until: float) -> None:
    """Hold all aliases; with `--terminate`, transactions that go on are ended.

    They have until a time of the monotonic clock to end.
    """
    fair_s = _FAIR_S + world.distance.pooler / 1000

    def left(kept_s: float) -> float:
        return max(fair_s, until - kept_s - time.monotonic())

    try:
        gates.hold(seconds=left(_kept(world)))
    except PauseFailed as error:
        if not world.plan.options.terminate:
            raise
        with world.on(world.plan.source):
            for pid in gates.busy(error.waiting):
                world.session(world.plan.source).execute("SELECT pg_terminate_backend(%s)", [pid])
        gates.open()
        gates.hold(seconds=left(0))


def _kept(world: World) -> float:
    """Give the seconds that waiting for transactions leaves to ending them."""
    return _STRAGGLERS_S if world.plan.options.terminate else 0.0


def _drain(world: World, session: Connection, budget: Budget) -> None:
    """Wait for those who write straight to the source; with `--terminate`, end them.

    What they have committed meanwhile may be bound to moved tables: a view elsewhere would write
    behind the fence. Raises SourceUnfit for that.
    """
    plan, until = world.plan, budget.latest("mark")
    try:
        waited = fence.drain(session, plan.source, plan.id, deadline=until - _kept(world))
    except fence.WritersLeft as error:
        _terminate(world, error)
        waited = fence.drain(session, plan.source, plan.id, deadline=until)
    if waited:
        staying = planning.leaving(world.topology, plan)
        preflight_schemas.require_uncrossed(session, plan, staying)


def _terminate(world: World, error: fence.WritersLeft) -> None:
    """End those who go on writing, if the operator wants that and it can be; else raise it."""
    if not world.plan.options.terminate or None in error.pids:
        raise error
    for pid in error.pids:
        world.session(world.plan.source).execute("SELECT pg_terminate_backend(%s)", [pid])


def _point_of_no_return(world: World, gates: Gates, budget: Budget, lsn: str) -> None:
    """Commit `promoting` on the source, if it is still drained; from here it only goes on."""
    source, plan = world.plan.source, world.plan
    _look_again(world, gates)
    budget.require("decide")
    # Of this attempt, and not of another operator's after it.
    revision = budget.revision + 2
    with world.timeline.span("decide"), world.on(source):
        try:
            decided = journal.advance(
                world.session(source),
                plan.id,
                [MoveState.drained],
                MoveState.promoting,
                revision=revision,
                drained_to=lsn,
            )
        except psycopg.OperationalError:
            # The answer was lost, and perhaps not the commit, which may even be to come: so it
            # is called off, and whichever of the two the source has taken first counts.
            fence.lift(world.session(source), plan.id, revision=budget.revision)
            decided = undoing.state(world) == MoveState.promoting
    if not decided:
        raise NotPromoting(plan.id, undoing.state(world))


def _look_again(world: World, gates: Gates) -> None:
    """See that nobody writes where the fence is, and that the source's lock is ours.

    The target's is held by the session that has just told what it has replayed.
    """
    source, plan = world.plan.source, world.plan
    if plan.options.read_only:
        world.require_lock(source)
        with world.on(source):
            now = time.monotonic()
            write_fence.drain(world.session(source), source, plan.schemas, deadline=now)
    elif world.distance.source and world.distance.pooler:
        fanout.at_once(lambda: world.require_lock(source), gates.require_held)
    else:  # to start threads takes longer than a way that they would save
        world.require_lock(source)
        gates.require_held()


def _route(world: World, gates: Gates, budget: Budget, fencing_at: float) -> None:
    """Serve the clients, and note how long they were not; `fencing_at` is when that began."""
    if budget.left() > 0:
        gates.route()
    else:  # the guards have been at work, and may be yet
        gates.settle()
    now = gates.served_at or time.monotonic()
    if gates.held_at is not None:
        world.timeline.pause_ms = (now - gates.held_at) * 1000
    if world.plan.options.read_only:
        world.timeline.refused_ms = (now - fencing_at) * 1000


def _distance(world: World, gates: Gates) -> Distance:
    """Measure how far all are who will be asked."""
    source, target = world.plan.source, world.plan.target
    ways = {}
    for node in (source, target):
        ask = partial(world.session(node).execute, "SELECT 1")
        with world.on(node):
            ways[node] = shortest_ms(partial(replay.again, ask))
    return Distance.of(source=ways[source], target=ways[target], pooler=gates.distance_ms())


def _question(world: World) -> Question:
    """Ask the target whether it serves the shards: what a pooler's guard goes by."""
    target, database = world.target, world.topology.database
    # The guard asks as shardctl does, whatever the defaults of the role and the database are.
    given = dict(database.options) | {"options": connection.options(database)}
    # Until it is opened up, the clone lets nobody in through a socket of its machine.
    host = target.host if target.pooler_host.startswith("/") else target.pooler_host
    dsn = make_conninfo(
        "",
        **given,
        host=host,
        port=target.port,
        dbname=database.name,
        user=database.user,
    )
    later = [s.value for s in MoveState if s.claimed_by_target and s is not MoveState.claimed]
    query = handover.QUERIES["serves"].format(
        move=sql.Literal(world.plan.id),
        later=sql.Literal(later),
        waiting=sql.Literal(f"{clones.MARK}/{clones.HBA}"),
    )
    return Question(dsn, query.as_string())


def _revision(world: World) -> int:
    found = undoing.at_source(world)
    if found is None or not found.state.undoable:
        raise NotPromoting(world.plan.id, found.state if found else "unknown")
    return found.revision
