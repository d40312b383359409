"""Copy: the moved shards on the target, closed: tables, the rows of one moment, and the rest.

The rows of a snapshot, which ends with its session, are copied at once or again. Indexes and
constraints that were broken off are made again without them.

A clone is a copy of the source's whole server. It accepts shardctl's addresses only, and those of a
machine that continues the move. What is reversed has its copies already: they get their names back,
closed to clients.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.access import read_only
from shardctl.access.structure_digest import StructureChanged
from shardctl.errors import ShardctlError, Unfinished, together
from shardctl.meter import BYTES
from shardctl.moves import ddl, marks, reverse_kept, wal
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import reverse, trial
from shardctl.moves.step import Step
from shardctl.postgres import catalog, slots
from shardctl.postgres import clone as clones
from shardctl.postgres.connection import NodeUnavailable, Route
from shardctl.postgres.logical import (
    closing,
    copying,
    publication,
    structure,
    subscription,
)
from shardctl.state import journal, reverses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.context import MoveContext
    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection

logger = logging.getLogger(__name__)

_DONE = "closed"
"""The target's mark when its copies have everything and refuse writes."""
_JOBS = 4
_ADMITTED_S = 10.0
_POLL = 0.02


def probe(context: MoveContext) -> bool:
    """See whether the target has the copies, and the source keeps the WAL that follows them."""
    if context.past_cutover():
        return True
    with context.using(context.plan.target) as there:
        return marks.seen(there, context.plan.id, _DONE) and _has_rows(context)


def _has_rows(context: MoveContext) -> bool:
    plan = context.plan
    with context.using(plan.source) as session:
        return slots.keeps(session, plan.slot) and marks.is_copied(context)


def run(context: MoveContext) -> None:
    """Make the copies; where the rows are there, only the rest.

    What the rest cannot be made of, or what is not what the source has any more, is copied again.
    """
    plan = context.plan
    if _has_rows(context):
        try:
            ddl.require_same(context, plan.schemas)
            make_rest(context, again=True)
        except (StructureChanged, structure.NotMade) as error:
            context.notice(f"{error.message}; shardctl copies the shards again")
        else:
            return
    make_tables(context)
    copy_rows(context)
    make_rest(context)


def make_tables(context: MoveContext) -> None:
    """Make the tables; what an earlier attempt has made is dropped first."""
    plan = context.plan
    with context.using(plan.target) as there:
        if catalog.present(there, plan.schemas):
            context.notice(f"node {plan.target}: shardctl copies the shards again")
    _drop(context)
    _end_stream(context)
    with context.on(plan.source):
        marks.forget(context.session(plan.source), plan.id)
        marks.note_timeline(context.session(plan.source), plan.id)
        # Before the structure is noted: the copies have it, too, as a reverse needs it there.
        publication.lend_identities(context.session(plan.source), plan.lent)
    ddl.note(context)
    with context.kept_progress() as shown:
        shown.expect(plan.target, "making tables", 0)
        structure.make_tables(_route(context), plan.schemas, **_how(context))
    with context.on(plan.target):
        closing.withhold(there, plan.schemas)
        with context.on(plan.source):
            refuses = read_only.marks(context.session(plan.source), plan.schemas)
        if refuses:  # the copies get the triggers of a read-only shard, which call it
            there.execute(read_only.QUERIES["function"])
        copy_migrations(context)


def copy_rows(context: MoveContext) -> None:
    """Publish, make the slot with its snapshot, and copy what that sees."""
    plan, gone = context.plan, threading.Event()
    with context.using(plan.source) as session:
        _publish(context, session)
        wal.bound(context, plan.source, plan.slot, plan.options.max_wal_bytes or 0)
        with (
            slots.make_logical(
                _route(context),
                plan.slot,
                watch=session,
                report=lambda one: _tell(context, one),
            ) as snapshot,
            wal.shown(context, gone=gone.set) as shown,
            wal.slot_required(context),
        ):
            tables = copying.tables(session, plan.schemas)
            shown.expect(plan.target, "copying", sum(table.bytes for table in tables), BYTES)
            copying.copy(
                _route(context),
                tables,
                snapshot=snapshot,
                jobs=_JOBS,
                max_rate=plan.options.max_rate,
                advance=partial(shown.advance, plan.target),
                stop=gone,
            )
        slots.require(session, plan.source, plan.slot)
    marks.note_copied(context)


def make_rest(context: MoveContext, *, again: bool = False) -> None:
    """Make indexes, constraints and triggers, close the copies, and gather statistics.

    `again` drops first what an earlier attempt has made of them.
    """
    plan = context.plan
    with context.using(plan.target) as there:
        slots.end_sessions(there, plan.slot)  # programs of a killed shardctl go on without it
        with (
            wal.shown(context, gone=lambda: _end(context)) as shown,
            wal.slot_required(context),
        ):
            shown.expect(plan.target, "making indexes", 0)
            structure.make_rest(
                _route(context), plan.schemas, jobs=_JOBS, again=again, **_how(context)
            )
            closing.close(there, plan.id, plan.schemas)
            shown.expect(plan.target, "gathering statistics", 0)
            _gather_statistics(context)
        marks.put(there, plan.id, _DONE)


def undo(context: MoveContext) -> None:
    """Drop slot and publication, then the schemas on the target."""
    plan = context.plan
    _end_stream(context)
    with context.on(plan.source):
        publication.take_identities_back(context.session(plan.source), plan.lent)
    if not context.target_lost:
        _drop(context)


def copy_migrations(context: MoveContext) -> None:
    """Write down on the target which migrations ran in the moved shards."""
    plan = context.plan
    there, given = context.session(plan.target), {"shards": list(plan.shards)}
    with context.on(plan.source):
        row = context.session(plan.source).execute(marks.QUERIES["migrations"], given).fetchone()
    there.execute(marks.QUERIES["forget_migrations"], given)
    there.execute(marks.QUERIES["note_migrations"], {"rows": (row and row[0]) or []})


def require_unclaimed(context: MoveContext) -> None:
    """See that the target does not own the shards, and cannot claim them; raises Unfinished."""
    plan = context.plan
    with context.using(plan.target) as there:
        given = {"target": plan.target, "shards": list(plan.shards)}
        if there.execute(marks.QUERIES["owned"], given).fetchone() is not None:
            why = f"its map gives it shards of move {plan.id}"
        elif marks.last(there, plan.id, marks.DECISION) is not None:
            why = f"it has the decision of move {plan.id}"
        else:
            return
    raise Unfinished(
        f"node {plan.target}: {why}", hint="run `shardctl moves resume` to finish the move"
    )


def _route(context: MoveContext) -> Route:
    """Give from where to where the move copies; its sessions have the move's name."""
    return Route(context.source, context.target, context.topology.database, context.plan.slot)


def _how(context: MoveContext) -> Mapping[str, Any]:
    """Give the newer major version of both servers, and the owners of what is moved.

    Those only where a role has to have CREATE to be given something.
    """
    plan = context.plan
    source, there = context.session(plan.source), context.session(plan.target)
    major = max(one.info.server_version // 10_000 for one in (source, there))
    with context.on(plan.target):
        needed = subscription.needs_login(there)
    with context.on(plan.source):
        makers = structure.owners(source, plan.schemas) if needed else ()
    return {"major": major, "makers": makers}


def _publish(context: MoveContext, session: Connection) -> None:
    """Publish the moved tables, as they are now; `session` is with the source.

    The preflight may be long ago. Raises what it refuses of the tables (a table without a replica
    identity would refuse its clients' UPDATE from now on), and publication_blocked.
    """
    plan = context.plan
    found = preflight.again(context.topology, plan, "copy", purpose=context.purpose)
    if found:
        raise together(found)
    tables = publication.tables(session, plan.schemas)
    publication.create(session, plan.slot, tables, move=plan.id)


def _tell(context: MoveContext, blocker: Holder) -> None:
    context.notice(
        f"node {context.plan.source}: PostgreSQL makes the replication slot when this transaction "
        f"ends: {blocker}"
    )


def _end(context: MoveContext) -> None:
    """End the programs that make indexes for a stream that cannot go on; in another thread."""
    way = _route(context)
    try:
        with way.connect(context.target) as session:
            slots.end_sessions(session, way.name)
    except (ShardctlError, psycopg.Error) as error:
        logger.info("move %s: %s", context.plan.id, error)


def _gather_statistics(context: MoveContext) -> None:
    """Let the planner know the copies: no vacuum touches them until clients are served."""
    plan = context.plan
    there = context.session(plan.target)
    if tables := publication.tables(there, plan.schemas):
        names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
        there.execute(sql.SQL("ANALYZE {}").format(names))


def _end_stream(context: MoveContext) -> None:
    """Drop what the source has for the stream, and end what reads there for an earlier attempt."""
    plan = context.plan
    with context.on(plan.source):
        slots.end_sessions(context.session(plan.source), plan.slot)
    wal.end_stream(context)


def _drop(context: MoveContext) -> None:
    """Drop what this move has made on the target, and nothing of a shard that the target owns."""
    plan, name = context.plan, context.plan.slot
    with context.using(plan.target) as there:
        if journal.find(there, plan.id) is None:
            return  # it is written before anything is made: schemas of these names are others'
        require_unclaimed(context)
        # Programs and copies of a killed shardctl go on without it.
        slots.end_sessions(there, name)
        subscription.drop(there, name)
        # Marks of cutovers, too: after a failover of the source their attempts may come again.
        marks.forget(there, plan.id)
        structure.drop(there, plan.schemas)
        closing.remove(there, plan.id, deadline=time.monotonic())
        there.execute(marks.QUERIES["forget_migrations"], {"shards": list(plan.shards)})


STEP = Step(
    "copy",
    "makes the moved shards' tables on the target, copies their rows, makes indexes and "
    "constraints, and closes the copies",
    probe,
    run,
    undo,
)


def is_cloned(context: MoveContext) -> bool:
    """Return whether the target has a complete data directory of this move."""
    return context.past_cutover() or clones.look(context.clone) in ("made", "opened")


def clone(context: MoveContext) -> None:
    """Copy, with the settings that keep everybody but shardctl out."""
    with context.using(context.plan.source) as session, context.kept_progress() as progress:
        clones.make(
            context.clone,
            clones.Source(context.source, context.topology.database),
            session,
            addresses=_known(context),
            progress=progress,
            max_rate=context.plan.options.max_rate,
            clone_with=context.plan.options.clone_with,
        )


def remove_clone(context: MoveContext) -> None:
    """Stop the clone and delete what this move made, and nothing else."""
    clones.remove(context.clone)


CLONE_STEP = Step("clone", "copies the source onto the target", is_cloned, clone, remove_clone)


def _known(context: MoveContext) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to a move's target."""
    with context.using(context.plan.source) as session:
        return trial.addresses(context.topology, context.target, session)


def admit(context: MoveContext) -> None:
    """Make the move's clone accept this machine, if it still accepts only listed addresses.

    The source must be reachable. Waits a few seconds until the clone's server accepts a login: if
    it does not, the step that needs it reports why. Raises what its host refuses.
    """
    clone = context.clone
    try:
        if clones.look(clone) != "made":
            return
    except (clones.TargetNotEmpty, clones.CloneOfAnother):
        return  # the clone does not exist yet, or no longer
    plan = context.plan
    with context.on(plan.source):
        session, user = context.session(plan.source), context.topology.database.user
        rules = clones.rules(user, session, _known(context))
    if not (clones.admit(clone, rules) and clone.server.running()):
        return
    clone.server.reload()
    deadline = time.monotonic() + _ADMITTED_S
    while time.monotonic() < deadline:
        try:
            context.session(plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", plan.id, error.message)
            time.sleep(_POLL)
        else:
            return


def is_reopened(context: MoveContext) -> bool:
    """See whether the copies have their names, and the source keeps what they lack."""
    if context.past_cutover():
        return True
    plan = context.plan
    with context.on(plan.target):
        named = marks.seen(context.session(plan.target), plan.id, marks.COPIED)
    with context.using(plan.source) as session:
        kept = slots.keeps(session, plan.slot) and publication.oid(session, plan.slot) is not None
    return named and kept


def reopen(context: MoveContext) -> None:
    """See that nothing has changed since the move that is reversed, and give the names back.

    Raises reverse_lost, and what `preflight.reverse` finds.
    """
    plan = context.plan
    with context.using(plan.source) as session:
        reverse.require_slot(session, plan)
        ddl.note(context)  # what changes from now on, the cutover finds
        problems: list[ShardctlError] = [*reverse.at_source(session, plan)]
    with context.using(plan.target) as there:
        problems += reverse.at_target(there, plan)
        if problems:
            raise together(problems)
        names = reverse.names(there, plan)
        copy_migrations(context)
        _rename(there, names, plan.schemas)
    marks.note_copied(context)


def retire_again(context: MoveContext) -> None:
    """Give the copies their retired names again; the move cannot be reversed any more.

    What the stream has brought them stays: they are not what a reverse could begin with.
    """
    plan = context.plan
    begun = plan.reverses
    if begun is None:  # pragma: no cover  # it is a step of reverses alone
        raise AssertionError
    with context.using(plan.source) as session:
        reverse_kept.forget_on_target(session, plan.id)
        publication.take_identities_back(session, plan.lent)
        reverses.note(session, begun.move, reverses.ENDED, "its reverse was aborted")
    if context.target_lost:
        return
    require_unclaimed(context)
    with context.using(plan.target) as there:
        retired = reverse.retired(plan)
        if reverse.names(there, plan) != retired:
            _rename(there, plan.schemas, retired)
        reverse_kept.forget_on_source(there, plan.id)
        reverses.note(there, begun.move, reverses.ENDED, "its reverse was aborted")


def _rename(session: Connection, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Rename schemas, all at once."""
    there = catalog.present(session, names)
    with session.transaction():
        session.execute("SET LOCAL lock_timeout TO '5s'")
        for name, other in zip(names, wanted, strict=True):
            if name in there and name != other:
                renaming = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
                session.execute(renaming.format(sql.Identifier(name), sql.Identifier(other)))


REOPEN_STEP = Step(
    "reopen",
    "gives the retired copies their names back, closed to clients",
    is_reopened,
    reopen,
    retire_again,
)
