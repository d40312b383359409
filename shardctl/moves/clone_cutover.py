"""The cutover of a clone: its sub-steps in order, and what only they do.

The clone replays the source's WAL, is promoted, and claims its shards. `cutover.py` has what a
stream does, too, `undoing.py` what undoes it.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence
from shardctl.errors import Incomplete, Refused, Unfinished
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves import claims, cutover, undoing
from shardctl.moves import plan as planning
from shardctl.moves.context import Use
from shardctl.moves.plan import SourceUnfit
from shardctl.moves.sub_step import Cutover, SubStep
from shardctl.postgres import clone as clones
from shardctl.postgres import connection, queries, slots, standby
from shardctl.postgres.connection import is_lost
from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.topology import names

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection


logger = logging.getLogger(__name__)

QUERIES = queries.load("shardctl.moves", "promotion.sql")

_OPEN_S = 10.0
_PREPARED = "SH004"
_PROMOTION_S = 60.0
"""How long to wait for a promotion, which cannot be undone."""


def prepare(context: MoveContext) -> None:
    """Warm the session that claims."""
    given = {
        "schemas": list(context.plan.schemas),
        "names": [generator.REGISTER, generator.COUNTER],
    }
    target = context.plan.target
    with context.on(target):
        context.session(target, Use.snapshot)
        connection.ask_again(partial(_open_a_block, context))
        session = context.session(target, Use.lock)
        standby.ask(session, QUERIES["warm"], given)
        standby.ask(session, QUERIES["prepared"])
        connection.ask_again(lambda: standby.files_loaded(session))


def _open_a_block(context: MoveContext) -> None:
    """Warm what opens blocks: in a subtransaction, in which replay ends the session.

    The lock of the clone's node is taken again then; nobody else uses the clone.
    """
    context.lock(context.plan.target)
    context.session(context.plan.target, Use.lock).execute(claims.warming(context))


def serves(context: MoveContext) -> sql.Composed:
    """Compose the guards' query: the clone has claimed, and accepts all connections."""
    later = [s.value for s in MoveState if s.claimed_by_target and s is not MoveState.claimed]
    waiting = f"{clones.MARK}/{clones.HBA}"
    given = queries.literals(move=context.plan.id, later=later, waiting=waiting)
    return QUERIES["serves"].format(**given)


def pause(at: Attempt) -> None:
    """Pause all aliases, if this process still has the locks."""
    at.context.require_locks()  # a process that took them has also ended our guards
    cutover.hold(at, at.budget.latest("fence"))


def put_up_fence(at: Attempt) -> None:
    """Rename the schemas, and commit `fenced`; raises what `fence.put_up` raises."""
    plan = at.plan
    with at.context.on(plan.source):
        fence.put_up(
            at.source,
            plan.source,
            plan.id,
            revision=at.budget.revision,
            deadline=at.budget.latest("drain"),
            not_after=at.not_after,
        )


def drain(at: Attempt) -> None:
    """Wait for sessions that write directly on the source; terminate them with `--terminate`.

    What they have committed may depend on moved tables: a view elsewhere would bypass the fence.
    Raises SourceUnfit for that, WritersLeft, and unlogged_made.
    """
    with at.context.on(at.plan.source):
        if cutover.await_writers(at):
            cutover.require_uncrossed(at)


def mark(at: Attempt) -> None:
    """Commit `drained`, and record the position that the target needs; raises NotPromoting."""
    revision = at.budget.revision + 1
    with at.context.on(at.plan.source):
        lsn = journal.mark_drained(at.source, at.plan.id, revision=revision)
    if lsn is None:
        raise cutover.NotPromoting(at.plan.id, undoing.state(at.context))
    at.lsn = lsn


def catch_up(at: Attempt) -> None:
    """Wait until the clone has replayed up to that position; raises clone_not_replayed."""
    with at.context.using(at.plan.target, Use.lock) as session:
        standby.replayed(session, at.lsn, at.budget.latest("snapshot"))


def hold_snapshot(context: MoveContext) -> None:
    """Export a snapshot, which survives the promotion and does not see later writes.

    The promoted clone would run copied subscriptions before its claim: raises
    subscriptions_enabled.
    """

    def export() -> tuple[str, list[str]]:
        session = context.session(context.plan.target, Use.snapshot)
        [(snapshot, enabled)] = queries.rows_of_last(session, QUERIES["snapshot"].format())
        return str(snapshot), list(enabled)

    with context.on(context.plan.target):
        context.snapshot, enabled = connection.ask_again(export)
    if enabled:
        raise Refused(
            "subscriptions_enabled",
            f"node {context.plan.source}: subscriptions were enabled during the move: "
            f"{', '.join(enabled)}; the promoted clone would run them, too, and consume their "
            "changes",
            hint="disable or drop them, then run `shardctl moves resume`",
        )


def look_again(at: Attempt) -> None:
    """Check, before the decision, that every alias is still paused, and the source's lock held.

    The session that has just reported the replay position holds the target's lock. Raises
    PauseLost, NodeLost, and prepared_transactions, which would stop the claim.
    """
    with at.context.on(at.plan.source):
        if foreign := [named for (named,) in at.source.execute(QUERIES["foreign"])]:
            raise SourceUnfit(
                at.plan.source,
                "prepared_transactions",
                f"it has prepared transactions: {listed(foreign)}",
                hint="end them by COMMIT PREPARED or ROLLBACK PREPARED, then run `shardctl moves "
                "resume`",
            )
        cutover.require_locks(at.context, [at.plan.source], beside=at.pauses.require_held)


def decide(at: Attempt) -> None:
    """Commit `promoting` on the source, if it is still drained; raises NotPromoting."""
    cutover.decide_by(
        at,
        lambda revision: journal.advance(
            at.source,
            at.plan.id,
            [MoveState.drained],
            MoveState.promoting,
            revision=revision,
            drained_to=at.lsn,
        ),
    )


def require_caught_up(context: MoveContext, lsn: str) -> None:
    """Wait for replay, or check that replay had reached `lsn` before the promotion.

    Raises clone_not_replayed, and Unfinished where the clone left the source's timeline before
    `lsn`.
    """
    plan = context.plan
    with context.using(plan.target, Use.lock) as session:
        if standby.in_recovery(session):
            standby.replayed(session, lsn, time.monotonic() + _PROMOTION_S)
            return
        at = standby.promoted_at(session) or "0/0"
    if standby.position(at) < standby.position(lsn):
        raise Unfinished(
            f"move {plan.id}: the target was promoted at {at}, before it had replayed {lsn}",
            hint=f"rows committed between these positions may exist only in the retired schemas on "
            f"node {plan.source}, which prune keeps: compare them by hand, and please report a bug",
        )


def take_over(context: MoveContext) -> None:
    """Promote the clone, which has replayed enough; raises clone_not_promoted."""
    with context.using(context.plan.target, Use.lock) as session:
        standby.promote(session, time.monotonic() + _PROMOTION_S)


def take_ownership(at: Attempt) -> None:
    """Make the target the owner."""
    at.opened = claim(at.context, at.lsn)
    at.is_sure()


def claim(context: MoveContext, lsn: str) -> bool:
    """Claim, rename the schemas that stay on the source, and open the clone if possible.

    The claim's message opens the clone if its role may run programs. Raises NodeRefused where the
    server there is not the move's clone, and prepared_left.
    """
    plan, target = context.plan, context.plan.target
    session = context.session(target, Use.lock)
    with context.on(target):
        while True:
            try:
                rows = queries.rows_of_last(session, _claiming(context, lsn))
            except psycopg.Error as error:
                if is_lost(error):
                    raise
                if error.sqlstate == _PREPARED:
                    _end_prepared(context, session)
                    continue
                move = journal.find(session, plan.id)
                if move is None or not move.state.claimed_by_target:
                    raise
                # It has claimed, but perhaps may not run programs: the sub-step `open` needs none.
                logger.info("the target has claimed but not opened: %s", reason_of(error))
                return False
            return standby.is_open(session, rows[0][0], time.monotonic() + _OPEN_S)


def _claiming(context: MoveContext, lsn: str) -> sql.Composed:
    """Compose the claim: ids, names, map, journal; repeatable.

    `lsn` is the source's position that the target has reached: its journal may lack it. The server
    gets one message and executes all of it, even if this process is killed: guards route clients to
    a target that has claimed.
    """
    plan, leaving = context.plan, planning.leaving(context.topology, context.plan)
    return QUERIES["claim"].format(
        blocks=claims.opening(context),
        leaving=sql.Literal(list(leaving)),
        left_as=sql.Literal([names.retired(schema, plan.id) for schema in leaving]),
        owning=claims.owning(
            plan,
            sql.Literal(lsn),
            within=QUERIES["own_node"].format(target=sql.Literal(plan.target)),
        ),
        last=standby.opening(),
    )


def _end_prepared(context: MoveContext, session: Connection) -> None:
    """Roll back the prepared transactions that the clone has copied; the source has them, too.

    Only their owner or a superuser may do that. Raises prepared_left.
    """
    target = context.plan.target
    for gid, owner in session.execute(QUERIES["prepared"]).fetchall():
        try:
            session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        except psycopg.errors.UndefinedObject:
            logger.debug("prepared transaction %s has ended", gid)
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.ObjectNotInPrerequisiteState,  # its owner is ending it
        ) as error:
            raise Incomplete(
                "prepared_left",
                f"node {target}: only {owner} or a superuser may end prepared transaction {gid!r}",
                hint=f"add a line for {owner} or a superuser to pg_hba.conf there, which so far "
                "accepts only shardctl, reload, run ROLLBACK PREPARED there (the source has the "
                "transaction, too), then run `shardctl moves resume`",
            ) from error


def _open(context: MoveContext) -> tuple[str, ...]:
    """Open the clone, if needed; return the parameters that need a restart."""
    with context.using(context.plan.target, Use.lock) as session:
        deadline = time.monotonic() + _OPEN_S
        return standby.open_up(context.clone, session, deadline)


def settle(context: MoveContext) -> None:
    """Check that the clone runs with its own files; report parameters that need a restart."""
    if waiting := _open(context):
        context.notice(
            f"node {context.plan.target}: new values of {', '.join(waiting)} need a restart of its "
            "server: restart it when its clients can wait"
        )


def release(context: MoveContext) -> None:
    """Drop the replication slot at once: a forgotten one fills the source's disk."""
    if context.source_lost:
        return
    with context.on(context.plan.source):
        slots.drop(context.session(context.plan.source), context.plan.slot)


CUTOVER = Cutover(
    ready=cutover.ready(prepare, serves),
    undoable=(
        cutover.ARM,
        cutover.LOGINS,
        SubStep("pause", "pauses the aliases on all poolers and waits for their transactions",
                pause, asks="st p p", may_stop=True),
        SubStep("fence", "renames the moved schemas on the source, and commits `fenced`",
                put_up_fence, asks="s", may_stop=True),
        SubStep("drain", "waits for direct sessions that still write to the moved tables",
                drain, asks="s"),
        SubStep("mark", "commits `drained`, and records the position of the source's WAL",
                mark, asks="s"),
        SubStep("replay", "waits until the target has replayed up to that position",
                catch_up, asks="t"),
        SubStep("snapshot", "takes a snapshot of the target for the comparison",
                lambda at: hold_snapshot(at.context), asks="t"),
        SubStep("look", "checks that every alias is still paused, and the source's lock still held",
                look_again, asks="sp"),
        SubStep("decide", "commits `promoting` on the source: the point of no return",
                decide, asks="s", may_stop=True),
    ),
    decided=(
        SubStep("promote", "makes the target a primary",
                lambda at: take_over(at.context), asks="t",
                when=lambda at: not at.claimed),
        SubStep("claim", "makes the target the owner: new id blocks, names, map, `claimed`",
                take_ownership, asks="t t", when=lambda at: not at.claimed),
        SubStep("open", "opens the target to applications, if the claim's message could not",
                lambda at: _open(at.context), when=lambda at: not at.opened),
    ),
    concluding=(
        *cutover.SERVING,
        SubStep("settings", "checks that the target runs with its own files and settings",
                lambda at: settle(at.context)),
        SubStep("slot", "drops the replication slot on the source",
                lambda at: release(at.context)),
        *cutover.RECORDING,
    ),
)  # fmt: skip
