"""The cutover of a streamed move: its sub-steps in order, and what only they do.

The target has all rows when the fence's mark has come through the stream. `cutover.py` has what a
clone does, too, `stream_claim.py` the decision and the claim, `undoing.py` what undoes it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.access import fence, stream_fence, structure_digest
from shardctl.access.fence import WritersLeft
from shardctl.errors import ShardctlError
from shardctl.libpq import Sent
from shardctl.meter import listed
from shardctl.moves import cutover, ddl, marks, stream_claim, wal
from shardctl.moves.context import Use
from shardctl.moves.marks import StandbysBehind
from shardctl.moves.sub_step import REST_S, Cutover, SubStep
from shardctl.postgres import blocking, catalog
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.postgres.logical import subscription
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.topology.model import NodeName


_VACUUMS = "ShareUpdateExclusiveLock"
_PING_S = 1.0
_POLL_S = 0.001
_CLOSED_S = 10.0
_NOTHING = sql.SQL("SELECT 1")


def prepare(context: MoveContext) -> None:
    """Make the function of the claim; the sessions that decide and claim read all they need.

    See that the structure is what was copied, and that nothing keeps its locks from the fence.
    Raises StructureChanged, FenceRefused.
    """
    plan, target = context.plan, context.plan.target
    marks.require_publication(context)
    with context.on(plan.source):
        stream_claim.rehearse_decision(context)
    with context.on(target):
        marks.rehearse_fence(context)
        session = context.session(target, Use.lock)
        marks.require_copy(session, context.plan)
        stream_claim.make(context, session)
    with context.on(plan.source):
        session = context.session(plan.source)
        found = journal.find(session, plan.id)
        if found is not None and found.state.undoable:
            stream_fence.prepare(session, plan.id, revision=found.revision)
        digest, context.known = stream_fence.known(session, plan.schemas)
        ddl.require(context, digest, plan.schemas)
        # What gives way to no lock, such as VACUUM, is not waited for by clients.
        held = blocking.held(session, plan.schemas, but=blocking.CLIENTS)
        if stay := [str(o) for o in held if o.granted and o.mode == _VACUUMS and not o.yields_ms]:
            raise fence.FenceRefused(plan.source, "; ".join(stay[:3]))


def ping(at: Attempt) -> None:
    """Send a mark through the stream before clients wait; raises MarkNotSeen, StandbysBehind.

    A stream that is behind would be waited for by all clients. The mark has the source's
    timeline, by which a failover is noticed.
    """
    context, plan = at.context, at.plan
    with context.on(plan.source):
        marks.note_timeline(at.source, plan.id, attempt=at.attempt)
        _find_standbys(at)
        # One that is away would be waited for by all clients, too.
        marks.await_flushed(
            at.source,
            plan.source,
            at.standbys,
            marks.position(at.source),
            what="ping",
            deadline=min(time.monotonic() + _PING_S, at.budget.latest("pause")),
        )
    marks.wait_for(context, at.attempt, marks.PING, deadline=at.budget.latest("pause"))


def _find_standbys(at: Attempt) -> None:
    if at.plan.options.ignore_standby:
        return
    # First: one that comes in between is looked for again.
    at.connected = marks.connected_standbys(at.source)
    at.standbys = set(marks.expected_standbys(at.source))


def pause(at: Attempt) -> None:
    """Pause all aliases, if this process still has the locks."""
    require_locks(at.context)  # a process that took them has also ended our guards
    cutover.hold(at, at.budget.latest("fence"))


def require_locks(context: MoveContext, *, beside: Callable[[], object] = lambda: None) -> None:
    """Check that both are still held, and do something `beside` meanwhile; raises NodeLost.

    A process that lost one of them must change nothing more.
    """
    sent: list[tuple[NodeName, Sent]] = []
    problems: list[ShardctlError] = []
    try:
        for node in (context.plan.source, context.plan.target):
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


def put_up_fence(at: Attempt) -> None:
    """Let the target wait for the fence's mark; then lock, rename and mark.

    The target is at its wait then when the mark comes. The source goes on with the looks of
    `drain`, and tells whether other standbys may have come since the ping. With `--terminate`,
    those are ended who go on writing. Raises what `stream_fence.put_up` raises.
    """
    marks.expect_fence(at.context, at.attempt, deadline=at.budget.latest("snapshot"))
    seen = [marks.QUERIES["connected"].as_bytes()] if at.connected else []
    behind = [*at.context.known.looks, *seen]

    def put_up(kept_s: float) -> list[list[Any]]:
        return stream_fence.put_up(
            at.source,
            at.plan.source,
            at.plan.id,
            at.plan.schemas,
            tables=at.tables,
            attempt=at.attempt,
            revision=at.budget.revision,
            deadline=at.budget.latest("drain") - kept_s,
            not_after=at.not_after,
            behind=behind,
        )

    with at.context.on(at.plan.source):
        at.behind = at.without_writers(put_up)


def drain(at: Attempt) -> None:
    """Wait as behind a rename, and for what is made there; then look at the structure again.

    Locks on tables catch no session that makes a table, grants a right or alters a function. What
    is on the source's disk then has all that the target needs. Raises StructureChanged,
    WritersLeft.
    """
    known = at.context.known
    with at.context.on(at.plan.source):
        if at.connected and at.behind[-1] != [(at.connected,)]:
            at.standbys |= marks.expected_standbys(at.source)
        lsn = known.untouched(at.behind[: len(known.looks)]) if known else None
        if lsn is None:
            _look_closer(at)
            lsn = marks.position(at.source)
        at.lsn = lsn


def _look_closer(at: Attempt) -> None:
    # A session reads there, or DDL has changed other shards: one query finds out which.
    found = stream_fence.left(at.source, at.plan.id, at.plan.retired)
    if not (found.busy or found.unlogged or found.changing):
        ddl.require(at.context, found.digest, at.plan.retired)
        return
    cutover.await_writers(at)
    at.without_writers(lambda kept_s: _await_changes(at, kept_s))
    # A session that the first look found may have changed something and ended since.
    cutover.require_uncrossed(at)
    ddl.require_same(at.context, at.plan.retired)


def _await_changes(at: Attempt, kept_s: float) -> None:
    """Wait for those who change objects there without a lock; raises WritersLeft."""
    deadline = at.budget.latest_after("drain") - kept_s
    while pids := structure_digest.changing(at.source, at.plan.retired):
        if time.monotonic() > deadline:
            raise WritersLeft(at.plan.source, pids)
        time.sleep(_POLL_S)


def await_standbys(at: Attempt) -> None:
    """Wait until every standby that may be promoted has the fence; raises StandbysBehind.

    One that was there before and is away now has not.
    """
    with at.context.on(at.plan.source):
        deadline = at.budget.latest("snapshot")
        marks.await_flushed(
            at.source, at.plan.source, at.standbys, at.lsn, what="fence", deadline=deadline
        )


def arrive(at: Attempt) -> None:
    """Wait for the mark of the fence: everything that was committed before it is there then.

    Changes arrive with asynchronous commits. The target's own mark follows with a synchronous one,
    which puts them all on its disk. It comes with a snapshot, which does not see what clients write
    on the target later. Raises MarkNotSeen, and what `marks.require_copy` raises.
    """
    context, plan, deadline = at.context, at.plan, at.budget.latest("snapshot")
    while (snapshot := marks.fence_snapshot(context, at.attempt, deadline=deadline)) is None:
        marks.wait_for(context, at.attempt, stream_fence.MARK, deadline=deadline)
        with context.on(plan.target):
            marks.require_copy(context.session(plan.target, Use.lock), plan)
    context.exported = snapshot


def hold_snapshot(context: MoveContext) -> None:
    """Take the snapshot that the target has exported with its mark."""
    context.snapshot = context.exported


def look_again(at: Attempt) -> None:
    """Check that every alias is still paused, and both locks held, all at the same time.

    Raises PauseLost, NodeLost.
    """
    with at.context.on(at.plan.source):
        require_locks(at.context, beside=at.pauses.require_held)


def decide(at: Attempt) -> None:
    """Commit `promoting` and the decision on the source, if it is still drained."""
    context, lsn = at.context, at.lsn
    cutover.decide_by(
        at,
        lambda revision: stream_claim.decide(context, lsn, attempt=at.attempt, revision=revision),
    )


def await_standbys_again(at: Attempt) -> None:
    """Wait a while until the standbys have the decision, too.

    Without it, one that is promoted asks the target before it undoes anything. So the target
    claims when the budget is nearly spent: clients wait for it.
    """
    if not at.standbys:
        return
    try:
        with at.context.on(at.plan.source):
            lsn, deadline = marks.position(at.source), at.budget.deadline - REST_S
            marks.await_flushed(
                at.source, at.plan.source, at.standbys, lsn, what="decision", deadline=deadline
            )
    except (StandbysBehind, NodeLost, NodeUnavailable) as error:
        at.context.notice(f"{error.message}; the target claims the shards without waiting longer")


def claim(at: Attempt) -> None:
    """Make the target the owner, which opens the shards."""
    at.opened = stream_claim.claim(at.context)
    at.is_sure()


def release(context: MoveContext) -> None:
    """Drop subscription, slot and publication, which the move does not need any more."""
    plan = context.plan
    with context.on(plan.target):
        subscription.drop(context.session(plan.target), plan.slot)
    if not context.source_lost:
        wal.end_stream(context)
        _close_again(context)


def _close_again(context: MoveContext) -> None:
    """Take their names from moved schemas to which a failover of the source has given them back.

    A guard has claimed what the source's new primary did not know of. Raises FenceRefused.
    """
    plan, known = context.plan, context.journal()
    with context.on(plan.source):
        session = context.session(plan.source)
        both = list(zip(plan.schemas, plan.retired, strict=True))
        there = catalog.present(session, [*plan.schemas, *plan.retired])
        # Beside its retired copy a live schema is what a client has made since.
        reopened = [live for live, retired in both if live in there and retired not in there]
        if not reopened or known is None:
            return
        journal.copy(session, known)
        fence.close(session, plan.source, plan.id, deadline=time.monotonic() + _CLOSED_S)
    context.notice(
        f"node {plan.source} had lost its fence in a failover, and accepted writes to "
        f"{listed(reopened)} after node {plan.target} had claimed them: those rows are only in the "
        f"retired schemas there: compare them by hand; node {plan.target} may draw their ids again"
    )


CUTOVER = Cutover(
    ready=(
        SubStep("open consoles", "logs in to every pooler's console, several times",
                lambda at: cutover.log_in(at, prepare)),
        cutover.STAGE,
        SubStep("rehearse guards", "queries the target from every pooler's host, as a guard would",
                lambda at: cutover.rehearse_guards(at, stream_claim.serves(at.context))),
    ),
    undoable=(
        cutover.ARM,
        SubStep("ping", "sends a mark through the stream, and waits until it has arrived",
                ping, asks="s t"),
        cutover.LOGINS,
        SubStep("pause", "pauses the aliases on all poolers and waits for their transactions",
                pause, asks="st p p", may_stop=True),
        SubStep("fence", "locks the moved tables against writers, renames their schemas on the "
                "source, marks the stream, and commits `fenced`",
                put_up_fence, asks="s", may_stop=True),
        SubStep("drain", "waits for those who write to the moved tables or make some all the same, "
                "and sees that the structure is what was copied", drain),
        SubStep("standbys", "waits until every standby of the source that may be promoted has "
                "flushed the fence", await_standbys, asks="s"),
        SubStep("arrive", "waits until the fence's mark has come through the stream: the target "
                "has all rows then", arrive, asks="t"),
        SubStep("snapshot", "takes the snapshot of the target for the comparison, which has come "
                "with it", lambda at: hold_snapshot(at.context)),
        SubStep("look", "checks that every alias is still paused, and both locks still held",
                look_again, asks="stp"),
        SubStep("decide", "commits `drained` and `promoting` on the source, with its clock and its "
                "sequences, and the same into the stream: the point of no return",
                decide, asks="s", may_stop=True),
    ),
    decided=(
        SubStep("standbys again", "waits until those standbys have flushed the decision, too, "
                "as long as the budget lasts", await_standbys_again,
                when=lambda at: at.began),
        SubStep("claim", "makes the target the owner: sequences, new id blocks, map, `claimed`; "
                "opens the shards", claim, asks="t", when=lambda at: not at.claimed),
    ),
    concluding=(
        *cutover.SERVING,
        SubStep("stream", "drops subscription, slot and publication",
                lambda at: release(at.context)),
        *cutover.RECORDING,
    ),
)  # fmt: skip
