"""The handover of a clone: it replays all that its source had, is promoted, and claims its shards.

See `method.Handover` for what each function has to do.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import ShardctlError, Unfinished
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.moves import blocks, claims, cloned, fences
from shardctl.moves.context import Use
from shardctl.postgres import clone as clones
from shardctl.postgres import opening, queries, replay, repmgr, slots, standby, timeline
from shardctl.postgres.connection import is_lost
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection

logger = logging.getLogger(__name__)

QUERIES = queries.load("shardctl.moves", "promotion.sql")

_OPEN_S = 10.0
_PREPARED = "SH004"
_PROMOTION_S = 60.0
"""How long a promotion may take; it cannot be undone, so it is waited for."""

reversible = False


class SubscriptionsEnabled(ShardctlError):
    """Subscriptions that were enabled since it was looked for them before the cutover."""

    def __init__(self, node: str, names: Sequence[str]) -> None:
        super().__init__(
            f"node {node}: subscriptions were enabled meanwhile: {', '.join(names)}; the promoted "
            "clone would run them, too, and take their changes away",
            hint="disable or drop them, then `shardctl moves resume`",
        )
        self.names = tuple(names)


class PreparedLeft(Unfinished):
    """A prepared transaction on the target that could write to what it is to own."""

    def __init__(self, node: str, gid: str, owner: str) -> None:
        super().__init__(
            f"node {node}: prepared transaction {gid!r} of {owner} holds schemas of shards, and "
            "may be ended by its owner or a superuser only",
            hint="add a line for one of them to pg_hba.conf there, which lets in nobody but "
            "shardctl yet, reload, ROLLBACK PREPARED (the source has it, too), then "
            "`shardctl moves resume`",
        )
        self.gid = gid
        self.owner = owner


class _Leaving(tuple[str, ...]):
    """The schemas that the target has and does not own."""

    __slots__ = ()


def prepare(context: MoveContext) -> None:
    """Let the session that will claim read what it will need, before clients wait."""
    given = {
        "schemas": list(context.plan.schemas),
        "names": [generator.REGISTER, generator.COUNTER],
    }
    with context.on(context.plan.target):
        context.session(context.plan.target, Use.snapshot)
        session = context.session(context.plan.target, Use.lock)
        first = blocks.warming(context)
        standby.ask(session, QUERIES["warm"], given)
        replay.again(lambda: session.execute(first))
        standby.ask(session, QUERIES["prepared"])
        replay.again(lambda: opening.loaded(session))
    _leaving(context)


def serves(context: MoveContext) -> sql.Composed:
    """Ask for the claim, and whether files are in force with which the clone lets everybody in."""
    later = [s.value for s in MoveState if s.claimed_by_target and s is not MoveState.claimed]
    return QUERIES["serves"].format(
        move=sql.Literal(context.plan.id),
        later=sql.Literal(later),
        waiting=sql.Literal(f"{clones.MARK}/{clones.HBA}"),
    )


def catch_up(context: MoveContext, lsn: str, *, deadline: float) -> None:
    """Wait until the clone has replayed that; raises clone_not_replayed."""
    with context.on(context.plan.target):
        standby.replayed(context.session(context.plan.target, Use.lock), lsn, deadline)


def hold_snapshot(context: MoveContext) -> None:
    """Export a snapshot: it survives the promotion and does not see what is written later.

    Raises SubscriptionsEnabled: the promoted clone would run subscriptions that were copied before
    it has claimed its shards.
    """

    def export() -> tuple[str, list[str]]:
        session = context.session(context.plan.target, Use.snapshot)
        [(snapshot, enabled)] = queries.rows_of_last(session, QUERIES["snapshot"].format())
        return str(snapshot), list(enabled)

    with context.on(context.plan.target):
        context.snapshot, enabled = replay.again(export)
    if enabled:
        raise SubscriptionsEnabled(context.plan.source, enabled)


def start(context: MoveContext) -> None:
    """Start the clone's server."""
    standby.start(cloned.of(context))


def require_caught_up(context: MoveContext, lsn: str) -> None:
    """Wait for replay, or see that it had ended at the promotion.

    Raises clone_not_replayed, and Unfinished where the clone left the source's timeline before
    `lsn`.
    """
    plan = context.plan
    with context.on(plan.target):
        session = context.session(plan.target, Use.lock)
        if standby.in_recovery(session):
            standby.replayed(session, lsn, time.monotonic() + _PROMOTION_S)
            return
        found = timeline.forked_at(session)
    at = found.lsn if found else "0/0"
    if timeline.position(at) < timeline.position(lsn):
        raise Unfinished(
            f"move {plan.id}: the target left the source's timeline at {at}, before {lsn}",
            hint="what was committed between may be on the source only, under the retired names; "
            "nothing will be pruned: please report it",
        )


def take_over(context: MoveContext) -> None:
    """Make the clone, which has replayed all it must, a primary; raises clone_not_promoted."""
    with context.on(context.plan.target):
        session = context.session(context.plan.target, Use.lock)
        standby.promote(session, time.monotonic() + _PROMOTION_S)


def claim(context: MoveContext, lsn: str) -> bool:
    """Claim, rename what stays on the source, and let everybody in, if programs may run there.

    Raises Unfinished where the server there knows nothing of the move, and PreparedLeft.
    """
    plan, target = context.plan, context.plan.target
    session = context.session(target, Use.lock)
    known: list[str] = []
    with context.on(target):
        while True:
            try:
                rows = claims.make(context, lsn, _beside(context, known))
            except psycopg.Error as error:
                if is_lost(error):
                    raise
                if error.sqlstate == _PREPARED:
                    known = _end_all_prepared(context, session)
                    continue
                move = journal.find(session, plan.id)
                if move is None:
                    raise Unfinished(
                        f"node {target}: the server there is no clone of move {plan.id}",
                        hint="check the target's host and port, then `shardctl moves resume`",
                    ) from error
                if not move.state.claimed_by_target:
                    raise
                # It has claimed, and perhaps may not run programs: `open_up` needs none.
                logger.info("the target has claimed, and does not open up: %s", reason_of(error))
                return False
            return opening.is_open(session, rows[0][0], time.monotonic() + _OPEN_S)


def open_up(context: MoveContext) -> None:
    """Accept all connections that the source accepts; raises clone_not_opened, clone_refused."""
    _open(context)


def settle(context: MoveContext) -> None:
    """See that the clone runs with its own files; report what waits for a restart."""
    if waiting := _open(context):
        context.notice(
            f"node {context.plan.target}: values of {', '.join(waiting)} wait for a restart of its "
            "server; restart it at a time that suits its clients"
        )


def release(context: MoveContext) -> None:
    """Drop the replication slot at once: a forgotten one fills the source's disk."""
    if context.source_lost:
        return
    with context.on(context.plan.source):
        slots.drop(context.session(context.plan.source), context.plan.slot)


def finish(context: MoveContext) -> None:
    """Take the move's mark off the clone, and the clone out of its source's repmgr cluster."""
    _keep(context)
    _leave_repmgr(context)
    clones.forget(cloned.of(context))


def _leaving(context: MoveContext) -> _Leaving:
    """List the schemas that the target does not own.

    The databases say who owns a shard; the topology may be another operator's. It does not
    change as long as this process holds the nodes' locks.
    """
    stay = {"source": context.plan.source, "moved": list(context.plan.shards)}

    def ask() -> _Leaving:
        with context.on(context.plan.target):
            session = context.session(context.plan.target, Use.lock)
            rows = standby.ask(session, QUERIES["leaving"], stay)
        return _Leaving(schema for (schema,) in rows)

    return context.own(_Leaving, ask)


def _beside(context: MoveContext, known: Sequence[str]) -> claims.Beside:
    """Compose what only a clone's claim does; `known` prepared transactions may stay."""
    leaving = _leaving(context)
    return claims.Beside(
        first=QUERIES["none_prepared"].format(known=sql.Literal(list(known))),
        before=QUERIES["names_leaving"].format(
            leaving=sql.Literal(list(leaving)),
            left_as=sql.Literal([names.retired(schema, context.plan.id) for schema in leaving]),
        ),
        within=QUERIES["own_node"].format(target=sql.Literal(context.plan.target)),
        last=opening.by_itself(),
    )


def _end_all_prepared(context: MoveContext, session: Connection) -> list[str]:
    """Roll back the prepared transactions that the clone has brought along; list what stays."""
    for gid, owner in session.execute(QUERIES["prepared"]).fetchall():
        _end_prepared(context, session, gid, owner)
    return [gid for gid, _ in session.execute(QUERIES["prepared"])]


def _end_prepared(context: MoveContext, session: Connection, gid: str, owner: str) -> None:
    """Roll back a prepared transaction, which the source has, too, and decides about there.

    Only its owner or a superuser may. Of others nothing is to be feared here as long as they
    hold nothing of the moved shards, and the cutover has waited until none did: they stay, for
    clients wait. Raises PreparedLeft.
    """
    plan = context.plan
    try:
        session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    except psycopg.errors.UndefinedObject:
        logger.debug("prepared transaction %s has ended meanwhile", gid)
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ObjectNotInPrerequisiteState,  # its owner is ending it
    ) as error:
        held = {
            "gid": gid,
            "moved": [*plan.retired, *plan.schemas],
            "leaving": list(_leaving(context)),
            "triggers": fences.of(plan).refuses_writes,
        }
        if session.execute(QUERIES["holds"], held).fetchone() != (False,):
            raise PreparedLeft(plan.target, gid, owner) from error
        context.notice(
            f"node {plan.target}: prepared transaction {gid!r} of {owner} is left there "
            f"({reason_of(error)}): it holds nothing of the moved shards; let {owner} roll it back"
        )


def _open(context: MoveContext) -> tuple[str, ...]:
    """Open the clone up, if it is not; give the parameters that wait for a restart."""
    with context.on(context.plan.target):
        session = context.session(context.plan.target, Use.lock)
        deadline = time.monotonic() + _OPEN_S
        return opening.open_up(cloned.of(context), session, deadline).waiting


def _keep(context: MoveContext) -> None:
    """Take the move's mark off the clone, if that is not done."""
    clone = cloned.of(context)
    try:
        state = clones.look(clone)
    except clones.TargetNotEmpty:  # a node like any other has no mark
        return
    if state == "opened":
        clones.keep(clone)


def _leave_repmgr(context: MoveContext) -> None:
    """Let the clone forget the repmgr cluster of its source, which it is no part of.

    Not before clients are served: nothing acts on it as long as no repmgrd runs there.
    """
    target = context.plan.target
    with context.on(target):
        session = context.session(target)
        database = context.topology.database
        left = repmgr.leave(context.target, database, session, purpose=context.purpose)
        if left is not None:
            told = f"move {context.plan.id}: taken out of repmgr's cluster (database {left})"
            events.record(session, "move-shards", told)
