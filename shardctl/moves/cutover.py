"""The cutover: the short part of a move in which ownership changes; what both methods share.

The order is the promise: it is in `clone_cutover.py` and `stream_cutover.py`. Up to `decide`
everything can be undone, by this process, by the guard in the source, or by another operator:
whichever commits first wins. `attempt.py` runs the sub-steps.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence
from shardctl.errors import ShardctlError, Unfinished, together
from shardctl.libpq import Sent
from shardctl.moves import ddl, file, undoing
from shardctl.moves import plan as planning
from shardctl.moves.context import Use
from shardctl.moves.paused_poolers import PauseFailed
from shardctl.moves.sub_step import RoundTrips, SubStep, shortest_ms
from shardctl.pgbouncer.guard import Question
from shardctl.postgres import connection, queries
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import cluster, events, journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId


_NOTHING = sql.SQL("SELECT 1")
_FAIR_S = 0.1
"""The least time that transactions get to end, however little of the budget is left."""
_ARMING_S = 3.0
"""How long arming the guards on poolers' hosts may take without using up the budget."""


class NotPromoting(Unfinished):
    """A move that another process or a guard undid before the decision."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: a guard or another process undid its cutover before the "
            "point of no return",
            hint="run `shardctl moves resume` to try again",
        )


def revision(context: MoveContext) -> int:
    """Return the journal's revision before the fence; raises NotPromoting."""
    found = undoing.at_source(context)
    if found is None or not found.state.undoable:
        raise NotPromoting(context.plan.id, found.state if found else "unknown")
    return found.revision


def log_in(at: Attempt, prepare: Callable[[MoveContext], None]) -> None:
    """Open all sessions: a login takes longer than all later queries."""
    context, plan = at.context, at.plan
    at.pauses.open()
    prepare(context)
    with context.on(plan.source):
        guard_session(context)
        at.tables = fence.oids(at.source, plan.schemas)
    at.round_trips = round_trips(context, at.pauses.round_trip_ms())


def rehearse_guards(at: Attempt, serves: sql.Composed) -> None:
    """Query the target as a guard would; arming guards takes about as long as this."""
    began = time.monotonic()
    dsn = connection.from_host(at.context.target, at.context.topology.database)
    at.question = question = Question(dsn, serves.as_string())
    connection.ask_again(lambda: at.pauses.rehearse(question))
    # On remote hosts that may be longer than the whole budget.
    at.arming_s = min(2 * (time.monotonic() - began), _ARMING_S)


def arm_guards(at: Attempt) -> None:
    """Arm the guards on the poolers' hosts, then the source's, which starts the budget."""
    budget, began = at.budget, time.monotonic()
    after_s = at.plan.options.max_pause_s + at.arming_s + undoing.GUARD_LAG_S
    at.pauses.arm(after_s=after_s, question=at.question)
    # These guards must fire after the source's, so a budget that starts late is shorter.
    budget.begin(min(time.monotonic(), began + at.arming_s))
    arm_source(at)
    with at.context.on(at.plan.source):
        at.not_after = fence.not_after(at.source, budget.latest("drain"))


def hold(at: Attempt, until: float) -> None:
    """Pause all aliases; with `--terminate`, terminate transactions that do not end.

    They may end by themselves until `until`, on the monotonic clock. Raises PauseFailed, PauseLost.
    """
    fair_s = _FAIR_S + at.round_trips.pooler / 1000

    def left(kept_s: float) -> float:
        return max(fair_s, until - kept_s - time.monotonic())

    try:
        at.pauses.hold(seconds=left(at.kept_s))
    except PauseFailed as error:
        if not at.plan.options.terminate:
            raise
        with at.context.on(at.plan.source):
            for pid in error.pids:
                at.source.execute("SELECT pg_terminate_backend(%s)", [pid])
        at.pauses.open()
        at.pauses.hold(seconds=left(0))


def require_locks(
    context: MoveContext, nodes: Sequence[NodeName], *, beside: Callable[[], object] = lambda: None
) -> None:
    """Check that locks are still held, and do something `beside` meanwhile; raises NodeLost.

    A process that lost one of them must change nothing more.
    """
    sent: list[tuple[NodeName, Sent]] = []
    problems: list[ShardctlError] = []
    try:
        for node in nodes:
            with context.on(node):
                sent.append((node, Sent(context.sessions[node, Use.lock], _NOTHING)))
        beside()
    finally:
        for node, one in sent:  # an answer that nobody reads would meet the session's next request
            try:
                with context.on(node):
                    one.rows()
            except ShardctlError as error:
                problems.append(error)
    if problems:
        raise problems[0]


def await_writers(at: Attempt) -> bool:
    """Wait for them, and return whether there were any; raises WritersLeft, unlogged_made."""
    plan, until = at.plan, at.budget.latest_after("drain")
    return at.without_writers(
        lambda kept_s: fence.drain(at.source, plan.source, plan.id, deadline=until - kept_s)
    )


def require_uncrossed(at: Attempt) -> None:
    """See that nothing binds moved tables by more than their names; raises SourceUnfit."""
    staying = planning.leaving(at.context.topology, at.plan)
    ddl.require_uncrossed(at.source, at.plan, staying)


def decide_by(at: Attempt, commit: Callable[[int], bool]) -> None:
    """Pass the point of no return by a commit that tells whether it was still drained.

    It is given the revision that the journal has in this attempt, and not in another operator's
    after it. Raises NotPromoting.
    """
    context, plan = at.context, at.plan
    with context.on(plan.source):
        try:
            decided = commit(at.budget.revision + 2)
        except psycopg.OperationalError:
            # The answer was lost, but the commit may have happened or may still happen. So undo it:
            # whichever the source executed first counts.
            undoing.reconcile(context)
            fence.lift(at.source, plan.id, revision=at.budget.revision)
            decided = undoing.state(context) in (MoveState.promoting, MoveState.claimed)
    if not decided:
        raise NotPromoting(plan.id, undoing.state(context))


def round_trips(context: MoveContext, pooler_ms: float) -> RoundTrips:
    """Measure the round trips to source and target; that to the poolers is known."""
    took = {}
    for node in (context.plan.source, context.plan.target):
        ask = partial(context.session(node).execute, "SELECT 1")
        with context.on(node):
            took[node] = shortest_ms(partial(connection.ask_again, ask))
    return RoundTrips(
        source=took[context.plan.source], target=took[context.plan.target], pooler=pooler_ms
    )


def arm_source(at: Attempt) -> None:
    """Start the statement with which the source lifts the fence when the budget ends.

    A backend finishes its statement even when its client is gone. Raises budget_spent, Interrupted.
    """
    budget, source = at.budget, at.plan.source
    stop = next(one.name for one in at.cutover.undoable if one.may_stop)
    with at.context.on(source):
        guard = guard_session(at.context)
        pid = guard.info.backend_pid
        statement = fence.lifting(at.plan.id, after_s=budget.left(), revision=budget.revision)
        guard.pgconn.send_query(statement.as_string(guard).encode())
        while not _guard_sleeps(at.source, pid):
            budget.require(stop)


def guard_session(context: MoveContext) -> Connection:
    """Return the session of the source's guard, opened early: a remote login takes long."""
    session = context.session(context.plan.source, Use.guard)
    # A message to a lost client ends the session, and the guard's statement with it.
    session.execute("SET client_connection_check_interval TO 0; SET client_min_messages TO error")
    return session


def _guard_sleeps(beside: Connection, pid: int) -> bool:
    row = beside.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])


def route(at: Attempt) -> None:
    """Route the clients to the target, and record how long they waited."""
    pauses, timeline = at.pauses, at.context.timeline
    # Guards may have routed already, or may be routing now.
    pauses.route(again=not at.began or at.budget.left() <= 0)
    now = pauses.served_at or time.monotonic()
    if pauses.held_at is not None:
        timeline.pause_ms = (now - pauses.held_at) * 1000


def serve(at: Attempt) -> None:
    """Wait until waiting clients have connections, and report aliases whose clients have none."""
    if left := at.pauses.await_served():
        at.context.notice(f"clients are still waiting for a connection: {', '.join(left[:5])}")


def spread_map(context: MoveContext) -> None:
    """Write the target's map to every other node that has one, and the journal to the source.

    A node that is away keeps its older map, until `init` or the next move of its shards; so does a
    lost source. Raises what could not be written, after writing the rest.
    """
    plan = context.plan
    errors: list[ShardctlError] = []
    with context.using(plan.target) as session:
        version = queries.one(session, "SELECT map_version FROM shardctl.cluster")[0]
        owners = cluster.read_map(session)
    for node in context.topology.nodes.values():
        if node.name == plan.target or (node.name == plan.source and context.source_lost):
            continue
        try:
            with context.on(node.name):
                write_map(context, node.name, owners, version)
        except ShardctlError as error:
            away = isinstance(error, NodeLost | NodeUnavailable) and node.name != plan.source
            if node.shards and away:
                context.notice(
                    f"{error.message}; its map stays at an older version until `shardctl init`"
                )
            elif node.shards or node.name == plan.source:
                errors.append(error)
    if errors:
        raise together(errors)
    known = context.journal()
    if known is not None and plan.source in context.journal_nodes:
        with context.on(plan.source):
            journal.copy(context.session(plan.source), known)


def write_map(
    context: MoveContext, node: NodeName, owners: dict[ShardId, NodeName], version: int
) -> None:
    """Write the whole map to a node, unless its own is newer or of another cluster.

    The node may have missed earlier moves.
    """
    session = context.session(node)
    if not cluster.is_present(session):
        return
    row = cluster.read(session)
    if row is None or (row.cluster, row.node) != (context.topology.cluster, node):
        return
    with session.transaction():
        written = cluster.replace_map(session, context.topology, owners, version)
        if written and row.map_version < version:
            result = f"move {context.plan.id}: map version {version}"
            events.record(session, "move-shards", result)


def write_file(context: MoveContext) -> None:
    """Write the topology file if possible: `retire` tries again, and raises the error.

    An error here would end this process, and with it the snapshot for the comparison.
    """
    try:
        file.write(context.topology, context.plan)
    except file.FileNotEdited as error:
        context.notice(f"{error.message}; shardctl compares the rows, then tries again")


def ready(
    prepare: Callable[[MoveContext], None], serves: Callable[[MoveContext], sql.Composed]
) -> tuple[SubStep, ...]:
    """Return what comes before the guards; `serves` asks whether the target serves the shards."""
    return (
        SubStep("open consoles", "logs in to every pooler's console, several times",
                lambda at: log_in(at, prepare)),
        SubStep("stage files", "puts the new file of aliases beside the old one, on every pooler's "
                "host", lambda at: at.pauses.stage()),
        SubStep("rehearse guards", "queries the target from every pooler's host, as a guard would",
                lambda at: rehearse_guards(at, serves(at.context))),
    )  # fmt: skip


ARM = SubStep("arm guards", "starts the guards on the poolers' hosts, and the one in the source",
              arm_guards, asks="s s s")  # fmt: skip
LOGINS = SubStep("logins", "waits until no pooler is logging in to a node for these aliases",
                 lambda at: at.pauses.await_logins(), asks="p")  # fmt: skip
SERVING = (
    SubStep("route", "puts the new file into place on every pooler; RELOAD and RESUME in one "
            "packet", route, asks="p p"),
    SubStep("serve", "waits until waiting clients have connections again", serve, owed=True),
)  # fmt: skip
"""What serves the clients, as soon as the target owns the shards."""
RECORDING = (
    SubStep("map", "writes the new owners into the map of all other nodes",
            lambda at: spread_map(at.context)),
    SubStep("file", "writes the new owners into the topology file",
            lambda at: write_file(at.context)),
    SubStep("disarm", "ends the guards on the poolers' hosts",
            lambda at: at.pauses.disarm(), after="route"),
)  # fmt: skip
"""What else learns of the new owner, and the end."""
