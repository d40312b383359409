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
from shardctl.access import fence
from shardctl.errors import ShardctlError, Unfinished
from shardctl.moves import handover, interrupts, prediction, undoing
from shardctl.moves.distance import Distance, shortest_ms
from shardctl.moves.gates import Gates
from shardctl.moves.gates_refusals import PauseFailed
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import clone as clones
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shardctl.moves.interrupts import Deferred
    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection

_REST_S = 0.3
"""What has to be left of the budget when it is decided, for what comes after that."""
_SERVED_BY = "claim"
"""What has to be done soon after the budget's end: then guards lead clients to the target."""
_FAIR_S = 0.1
"""How long transactions have at least to end, however little of the budget is left."""
_ARMING_S = 3.0
"""How long arming the guards on poolers' hosts may take without costing the budget something."""
_STRAGGLERS_S = 1.0
"""What is kept of the budget for ending transactions that go on."""


class BudgetSpent(ShardctlError):
    """A cutover that took too long; it was undone, or its guards do that."""

    def __init__(self, before: str, left_s: float) -> None:
        super().__init__(
            f"the cutover's budget was nearly spent before `{before}` ({left_s:.2f} s left), "
            "so it was called off",
            hint="see what was slow (`shardctl moves show`), then `shardctl moves resume`; "
            "--max-pause gives it more time",
        )


class NotPromoting(Unfinished):
    """Somebody or something else decided about the move at the same moment."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it was called off before the point of no return",
            hint="`shardctl moves resume` tries again",
        )


class Budget:
    """What is left of `--max-pause`, on a clock that nobody sets; it begins when it is made.

    `revision` is the journal's then: what changes it ends this attempt. The farther away those
    are who will be asked, the more has to be left.
    """

    def __init__(
        self, seconds: float, revision: int, interrupt: Deferred, distance: Distance
    ) -> None:
        self._seconds = seconds
        self.begin(time.monotonic())
        self.revision = revision
        self._interrupt = interrupt
        self._distance = distance

    def begin(self, at: float) -> None:
        """Let it begin anew, at a time of `time.monotonic()`."""
        self.deadline = at + self._seconds

    def left(self) -> float:
        """Give the seconds that are left, below 0 when it is spent."""
        return self.deadline - time.monotonic()

    def latest(self, part: str) -> float:
        """Give when a part of the cutover has to begin at the latest, on the monotonic clock."""
        far_ms = prediction.far_ms(self._distance, prediction.between(part, _SERVED_BY))
        return self.deadline - _REST_S - far_ms / 1000

    def require(self, before: str) -> None:
        """Refuse to go on too late: a process that was stopped and wakes up does nothing more.

        Nor does one that somebody wants to stop. Raises BudgetSpent, Interrupted.
        """
        if time.monotonic() > self.latest(before):
            raise BudgetSpent(before, self.left())
        self._interrupt.require_none(f"interrupted before `{before}`: the cutover was called off")


def run(world: World) -> None:
    """Change the ownership of the move's shards; clients of the poolers wait meanwhile.

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
                _guard_session(world)
            leaving = handover.warm(world)
            world.distance = _distance(world, gates)
        prediction.require_time(world.topology, plan, world.distance)
        with timeline.span("stage files"):
            gates.stage()
        question = _question(world)
        began = time.monotonic()
        with timeline.span("rehearse guards"):
            gates.rehearse(question)
        # Arming takes about as long: on far hosts longer than a whole budget may be.
        arming_s = min(2 * (time.monotonic() - began), _ARMING_S)
        budget = Budget(plan.options.max_pause_s, _revision(world), interrupt, world.distance)
        try:
            with timeline.span("arm guards"):
                began = time.monotonic()
                after_s = plan.options.max_pause_s + arming_s + undoing.GUARD_LAG_S
                gates.hold_files(seconds=after_s)
                gates.arm(after_s=after_s, question=question)
                # Those guards fire after the source's, so a budget that begins late is shorter.
                budget.begin(min(time.monotonic(), began + arming_s))
                _arm_source(world, budget)
            with timeline.span("logins"):
                gates.await_logins()
            with world.on(plan.source):
                not_after = fence.not_after(world.session(plan.source), budget.latest("drain"))
            paused_at = time.monotonic()
            lsn = _until_drained(world, gates, budget, not_after)
            _point_of_no_return(world, gates, budget, lsn)
        except BaseException:
            undoing.take_back(world, gates, budget)
            raise
        handover.promote(world)
        if not handover.claim(world, lsn, leaving):
            handover.open_up(world)

        def route() -> None:
            if budget.left() > 0:
                gates.route()
            else:  # the guards have been at work, and may be yet
                gates.settle()
            timeline.pause_ms = (time.monotonic() - paused_at) * 1000

        handover.conclude(world, gates, route)
        interrupt.require_none(
            f"move {plan.id}: interrupted after its cutover: node {plan.target} serves the shards"
        )


def _until_drained(world: World, gates: Gates, budget: Budget, not_after: datetime) -> str:
    """Pause, fence, drain, mark, and wait until the target has it all; give the WAL position.

    `not_after` is when the fence has to be up, on the source's clock.
    """
    plan, timeline, source = world.plan, world.timeline, world.plan.source
    session = world.session(source)
    budget.require("pause")
    with timeline.span("pause"):
        world.require_locks()  # whoever has taken them has ended our guards, too
        _pause(world, gates, budget)
    budget.require("fence")
    with timeline.span("fence"), world.on(source):
        oids = fence.put_up(
            session,
            source,
            plan.id,
            revision=budget.revision,
            deadline=budget.latest("drain"),
            not_after=not_after,
        )
    with timeline.span("drain"), world.on(source):
        _drain(world, session, oids, budget)
    with timeline.span("mark"), world.on(source):
        lsn = journal.mark_drained(session, plan.id, revision=budget.revision + 1)
    if lsn is None:
        raise NotPromoting(plan.id, undoing.state(world))
    with timeline.span("replay"):
        handover.wait_for_replay(world, lsn, deadline=budget.latest("snapshot"))
    with timeline.span("snapshot"):
        handover.hold_snapshot(world)
    return lsn


def _pause(world: World, gates: Gates, budget: Budget) -> None:
    """Hold all aliases; with `--terminate`, transactions that go on are ended."""
    fair_s = _FAIR_S + world.distance.pooler / 1000

    def left(kept_s: float) -> float:
        return max(fair_s, budget.latest("fence") - kept_s - time.monotonic())

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


def _drain(world: World, session: Connection, oids: Sequence[int], budget: Budget) -> None:
    """Wait for those who write straight to the source; with `--terminate`, end them."""
    source, until = world.plan.source, budget.latest("mark")
    try:
        fence.drain(session, source, oids, deadline=until - _kept(world))
    except fence.WritersLeft as error:
        if not world.plan.options.terminate or None in error.pids:
            raise
        for pid in error.pids:
            session.execute("SELECT pg_terminate_backend(%s)", [pid])
        fence.drain(session, source, oids, deadline=until)


def _point_of_no_return(world: World, gates: Gates, budget: Budget, lsn: str) -> None:
    """Commit `promoting` on the source, if it is still drained; from here it only goes on."""
    source, plan = world.plan.source, world.plan
    # The target's is held by the session that has just told what it has replayed.
    fanout.at_once(lambda: world.require_lock(source), gates.require_held)
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


def _arm_source(world: World, budget: Budget) -> None:
    """Let the source itself lift the fence when the budget ends, whatever becomes of this process.

    A backend finishes its statement even when its client is gone.
    """
    source = world.plan.source
    with world.on(source):
        session = _guard_session(world)
        pid = session.info.backend_pid
        statement = fence.lifting(world.plan.id, after_s=budget.left(), revision=budget.revision)
        session.pgconn.send_query(statement.as_string(session).encode())
        while not _sleeps(world.session(source), pid):
            budget.require("pause")


def _guard_session(world: World) -> Connection:
    """Give the session in which the source's guard runs; a login takes long on a far host."""
    if (found := world.sessions.get(f"{world.plan.source}/guard")) and not found.closed:
        return found
    session = world.session(world.plan.source, "guard")
    session.execute("SET client_connection_check_interval TO 0")
    if session.info.server_version >= 170_000:
        session.execute("SET transaction_timeout TO 0")
    return session


def _distance(world: World, gates: Gates) -> Distance:
    """Measure how far all are who will be asked."""
    source, target = world.plan.source, world.plan.target
    ways = {}
    for node in (source, target):
        with world.on(node):
            session = world.session(node)
            ways[node] = shortest_ms(partial(session.execute, "SELECT 1"))
    return Distance.of(source=ways[source], target=ways[target], pooler=gates.distance_ms())


def _sleeps(session: Connection, pid: int) -> bool:
    row = session.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])


def _question(world: World) -> Question:
    """Ask the target whether it serves the shards: what a pooler's guard goes by."""
    target, database = world.target, world.topology.database
    given = {k: v for k, v in database.options.items() if k != "options"}
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
