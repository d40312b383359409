"""What follows the point of no return: promote, claim, route, tell everybody; all repeatable."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.access import fence, write_fence
from shardctl.errors import ShardctlError, Unfinished, together
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.moves import blocks, file, fork, interrupts, prediction, proof
from shardctl.moves.gates import Gates
from shardctl.postgres import opening, queries, replay, slots, standby
from shardctl.postgres.connection import is_lost
from shardctl.state import cluster, events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import names, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node

logger = logging.getLogger(__name__)

QUERIES = queries.load("shardctl.moves", "claim.sql")

_OPEN_S = 10.0
_CLOSE_S = 1.0
"""How long the source's schemas are tried to be renamed against DDL, while readers wait."""
_PREPARED = "SH004"
_PROMOTION_S = 60.0
"""How long a promotion may take; it cannot be undone, so it is waited for."""


class NotTheClone(Unfinished):
    """A server in the target's place that knows nothing of the move."""

    def __init__(self, node: str, move: str) -> None:
        super().__init__(
            f"node {node}: the server there is no clone of move {move}",
            hint="check the target's host and port, then `shardctl moves resume`",
        )


class NotDecided(Unfinished):
    """A move of which nobody that can be asked says that it is past the point of no return."""

    def __init__(self, move: str) -> None:
        super().__init__(
            f"move {move}: only its source knows whether it may go on",
            hint="start the source again, then `shardctl moves resume`",
        )


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


def wait_for_replay(world: World, lsn: str, *, deadline: float) -> None:
    """Wait until the target has replayed `lsn`; the deadline is on the monotonic clock."""
    with world.on(world.plan.target):
        standby.replayed(world.session(world.plan.target, "lock"), lsn, deadline)


def hold_snapshot(world: World) -> None:
    """Keep what the target has now visible to one session, for the comparison afterwards.

    It survives the promotion and does not see what is written later. Raises SubscriptionsEnabled:
    the promoted clone would run subscriptions that were copied before it has claimed its shards.
    """

    def export() -> tuple[str, list[str]]:
        session = world.session(world.plan.target, "snapshot")
        [(snapshot, enabled)] = queries.rows_of_last(session, QUERIES["snapshot"].format())
        return str(snapshot), list(enabled)

    with world.on(world.plan.target):
        world.snapshot, enabled = replay.again(export)
    if enabled:
        raise SubscriptionsEnabled(world.plan.source, enabled)


def warm(world: World) -> list[str]:
    """Let the session that will claim get to know what it will read, before clients wait.

    Gives what `leaving` does.
    """
    given = {
        "schemas": list(world.plan.schemas),
        "names": [generator.REGISTER, generator.COUNTER],
    }
    with world.on(world.plan.target):
        session = world.session(world.plan.target, "lock")
        first = blocks.warming(world)
        standby.ask(session, QUERIES["warm"], given)
        replay.again(lambda: session.execute(first))
        standby.ask(session, QUERIES["prepared"])
        replay.again(lambda: opening.loaded(session))
    return leaving(world)


def leaving(world: World) -> list[str]:
    """List the schemas that the target does not own.

    The databases say who owns a shard; the topology may be another operator's. Nobody changes
    that as long as this process holds the nodes' locks.
    """
    stay = {"source": world.plan.source, "moved": list(world.plan.shards)}
    with world.on(world.plan.target):
        session = world.session(world.plan.target, "lock")
        return [schema for (schema,) in standby.ask(session, QUERIES["leaving"], stay)]


def catch_up(world: World, lsn: str) -> None:
    """See, at leisure, that the target has all up to `lsn`, or had it when it was promoted.

    Raises NotReplayed, ForkedTooEarly.
    """
    with world.on(world.plan.target):
        recovering = standby.in_recovery(world.session(world.plan.target, "lock"))
    if recovering:
        wait_for_replay(world, lsn, deadline=time.monotonic() + _PROMOTION_S)
    else:
        fork.require(world, lsn)


def promote(world: World) -> None:
    """Make the target, which has replayed all that it must have, a primary; raises NotPromoted."""
    with world.timeline.span("promote"), world.on(world.plan.target):
        session = world.session(world.plan.target, "lock")
        standby.promote(session, time.monotonic() + _PROMOTION_S)


def claim(world: World, lsn: str, leaving: Sequence[str]) -> bool:
    """Make the target the owner of the moved shards, in one transaction; repeatable.

    `lsn` is what it has replayed: it may have been promoted before it was told that. `leaving`
    loses its names. All goes as one message, which the server carries out to its end: the guards
    lead clients to a target that has claimed, also if this process is killed meanwhile. Tells
    whether everybody is let in, too; else that is left to `open_up`. Raises NotTheClone,
    PreparedLeft.
    """
    plan, target = world.plan, world.plan.target
    session = world.session(target, "lock")
    known: list[str] = []
    with world.timeline.span("claim"), world.on(target):
        while True:
            try:
                rows = queries.rows_of_last(session, _claiming(world, lsn, leaving, known))
            except psycopg.Error as error:
                if is_lost(error):
                    raise
                if error.sqlstate == _PREPARED:
                    known = _end_all_prepared(world, session, leaving)
                    continue
                move = journal.find(session, plan.id)
                if move is None:
                    raise NotTheClone(target, plan.id) from error
                if not move.state.claimed_by_target:
                    raise
                # It has claimed, and perhaps may not run programs: `open_up` needs none.
                logger.info("the target has claimed, and does not open up: %s", reason_of(error))
                return False
            return opening.is_open(session, rows[0][0], time.monotonic() + _OPEN_S)


def _claiming(world: World, lsn: str, leaving: Sequence[str], known: Sequence[str]) -> sql.Composed:
    """Compose the message by which the target claims; `known` prepared transactions may stay."""
    plan = world.plan
    return QUERIES["claim"].format(
        blocks=blocks.opening(world),
        move=sql.Literal(plan.id),
        lsn=sql.Literal(lsn),
        known=sql.Literal(list(known)),
        leaving=sql.Literal(list(leaving)),
        left_as=sql.Literal([names.retired(schema, plan.id) for schema in leaving]),
        target=sql.Literal(plan.target),
        map_version=sql.Literal(plan.map_version + 1),
        names_back=fence.names_back(plan.id),
        drop=write_fence.drop(plan.id) if plan.options.read_only else sql.SQL(""),
        opening=opening.by_itself(),
    )


def _end_all_prepared(world: World, session: Connection, leaving: Sequence[str]) -> list[str]:
    """Roll back the prepared transactions that the clone has brought along; list what stays."""
    for gid, owner in session.execute(QUERIES["prepared"]).fetchall():
        _end_prepared(world, session, gid, owner, leaving)
    return [gid for gid, _ in session.execute(QUERIES["prepared"])]


def _end_prepared(
    world: World, session: Connection, gid: str, owner: str, leaving: Sequence[str]
) -> None:
    """Roll back a prepared transaction, which the source has, too, and decides about there.

    Only its owner or a superuser may. Of others nothing is to be feared here as long as they
    hold nothing of the moved shards, and the cutover has waited until none did: they stay, for
    clients wait. Raises PreparedLeft.
    """
    try:
        session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    except psycopg.errors.UndefinedObject:
        logger.debug("prepared transaction %s has ended meanwhile", gid)
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ObjectNotInPrerequisiteState,  # somebody is ending it
    ) as error:
        plan = world.plan
        held = {
            "gid": gid,
            "moved": [*plan.retired, *plan.schemas],
            "leaving": list(leaving),
            "triggers": plan.options.read_only,
        }
        if session.execute(QUERIES["holds"], held).fetchone() != (False,):
            raise PreparedLeft(world.plan.target, gid, owner) from error
        world.notice(
            f"node {world.plan.target}: prepared transaction {gid!r} of {owner} is left there "
            f"({reason_of(error)}): it holds nothing of the moved shards; let {owner} roll it back"
        )


def close_source(world: World) -> None:
    """Let nobody read the moved shards on the source, which has only refused writes; repeatable.

    Until now it has given out ids to whoever asked for one, so those of the target are raised
    above them. Raises FenceRefused.
    """
    plan = world.plan
    with world.on(plan.source):
        session = world.session(plan.source)
        fence.close(session, plan.source, plan.id, deadline=time.monotonic() + _CLOSE_S)
        drawn = blocks.drawn(world, session)
    with world.on(plan.target):
        blocks.raise_above(world, world.session(plan.target, "lock"), drawn)


def open_up(world: World) -> None:
    """Let everybody in whom the source lets in; repeatable. Raises NotOpened, CloneRefused."""
    with world.timeline.span("open"):
        _settle(world)


def _settle(world: World) -> tuple[str, ...]:
    """See that the target runs with its own files and settings, and nothing of the clone's.

    Gives the parameters that wait for a restart.
    """
    with world.on(world.plan.target):
        session = world.session(world.plan.target, "lock")
        return opening.open_up(world.clone, session, time.monotonic() + _OPEN_S).waiting


def _report_waiting(world: World, names: Sequence[str]) -> None:
    if names:
        world.notice(
            f"node {world.plan.target}: values of {', '.join(names)} wait for a restart of its "
            "server; restart it at a time that suits its clients"
        )


def conclude(
    world: World, gates: Gates, route: Callable[[], None], hold: Callable[[], None] | None = None
) -> None:
    """Serve the clients, tell the other nodes, the journal and the file, end the guards.

    Where writes alone were refused, the source is closed first, and `hold` pauses the poolers for
    that. Repeatable. Raises what could not be done, when the rest is; a pooler that was not
    routed keeps its guard. The rows are compared before that is raised: the target's snapshot
    ends with this process.
    """
    plan = world.plan
    closing = plan.options.read_only and not world.source_lost
    failed: dict[str, ShardctlError] = {}
    for name, do in (
        ("pause", hold),
        ("close", (lambda: close_source(world)) if closing else None),
        ("route", route),
        ("serve", lambda: _tell_unserved(world, gates)),
        ("settings", lambda: _report_waiting(world, _settle(world))),
        ("slot", lambda: _drop_slot(world)),
        ("map", lambda: spread_map(world)),
        ("file", lambda: _write_file(world)),
        ("disarm", gates.disarm),
    ):
        if do is None or (name == "disarm" and "route" in failed):
            continue
        with world.timeline.span(name):
            try:
                do()
            except ShardctlError as error:
                failed[name] = error
    if failed:
        errors = list(failed.values())
        if "close" not in failed:
            errors += _prove_now(world, errors)
        raise together(errors)
    before = world.journal()
    report = dict((before and before.report) or {}) | {
        "predicted_pause_ms": round(prediction.pause_ms(world.topology, plan, world.distance), 1),
        "pause_ms": world.timeline.pause_ms,
        "pooler_waits_ms": gates.waits_ms,
        "timeline": [[name, round(ms, 1)] for name, ms in world.timeline.spans],
    }
    if plan.options.read_only:
        report["refused_ms"] = world.timeline.refused_ms
    for node in world.keepers:
        with world.on(node):
            journal.advance(
                world.session(node), plan.id, [MoveState.claimed], MoveState.routed, report=report
            )


def _prove_now(world: World, failed: Sequence[ShardctlError]) -> list[ShardctlError]:
    """Compare the rows while the target's snapshot is held; give what comes of it as errors.

    It may take long, so what has failed is told before. The source has to be closed: otherwise its
    tables are not retired.
    """
    if world.snapshot is None:
        return []
    for error in (part for one in failed for part in one.parts()):
        world.notice(f"{error.message}; shardctl compares the rows before it stops for that")
    try:
        proof.make(world)
    except ShardctlError as error:
        return [error]
    return []


def _tell_unserved(world: World, gates: Gates) -> None:
    if left := gates.await_served():
        world.notice(f"clients still wait for a connection: {', '.join(left[:5])}")
    for gate in gates.all:
        if gate.cancelled:
            world.notice(
                f"pooler {gate.pooler.name}: a client cancelled a statement on "
                f"{', '.join(gate.cancelled[:5])} while PAUSE waited for it; right after the "
                "pause, other clients there may have got 08P01 (server login has been failing), "
                "and PgBouncer executed nothing of their requests"
            )


def complete(world: World) -> None:
    """Go on from the point of no return, however far another process came; repeatable.

    Clients of the poolers are served even if the source is not there. Raises NotDecided, and
    Interrupted when it is done.
    """
    plan = world.plan
    with interrupts.deferred(world.notice) as interrupt:
        standby.start(world.clone)
        world.lock(plan.target)
        world.session(plan.target)
        move = world.journal()
        if move is None or move.state.undoable:
            raise NotDecided(plan.id)
        if move.state is MoveState.promoting:
            lsn = move.drained_to or "0/0"
            catch_up(world, lsn)
            promote(world)
            claim(world, lsn, leaving(world))
        open_up(world)
        world.require_lock(plan.target)
        with Gates(world.topology, world.after, plan, purpose=world.purpose) as gates:
            conclude(world, gates, gates.settle)
        interrupt.require_none(f"move {plan.id}: interrupted after its cutover was completed")


def spread_map(world: World) -> None:
    """Write the new owners to every other node that has a map, and the journal to the source.

    A node without shards may not be there, nor a source that is lost. Raises what could not be
    told, when all others were.
    """
    plan = world.plan
    errors: list[ShardctlError] = []
    for node in world.topology.nodes.values():
        if node.name == plan.target or (node.name == plan.source and world.source_lost):
            continue
        try:
            with world.on(node.name):
                _tell(world, node)
        except ShardctlError as error:
            if node.shards or node.name == plan.source:
                errors.append(error)
    if errors:
        raise together(errors)
    told = world.journal()
    if told is not None and plan.source in world.keepers:
        with world.on(plan.source):
            journal.copy(world.session(plan.source), told)


def _tell(world: World, node: Node) -> None:
    """Write the new owners into a node's map, unless that is newer or the node none of ours."""
    plan, version = world.plan, world.plan.map_version + 1
    session = world.session(node.name)
    if not cluster.is_present(session):
        return
    row = cluster.read(session)
    if row is None or (row.cluster, row.node) != (world.topology.cluster, node.name):
        return
    with session.transaction():
        # A process that was stopped for days must not bring back what was true then.
        if session.execute(QUERIES["map_version"], {"version": version}).fetchone() is None:
            return
        session.execute(QUERIES["map"], {"target": plan.target, "shards": list(plan.shards)})
        cluster.set_map_version(session, version)
        if row.map_version < version and node.name != plan.source:
            told = f"move {plan.id}: shards {ranges.of(plan.shards)} are on {plan.target}"
            events.record(session, "move-shards", told)


def _drop_slot(world: World) -> None:
    """Drop the replication slot at once: a forgotten one fills the source's disk."""
    if world.source_lost:
        return
    with world.on(world.plan.source):
        slots.drop(world.session(world.plan.source), world.plan.slot)


def _write_file(world: World) -> None:
    """Write the topology file if that can be done now: `retire` tries again, and raises the error.

    Raised here it would end this process, and with it the snapshot for the comparison.
    """
    try:
        file.write(world.topology, world.plan, world.after)
    except file.FileNotEdited as error:
        world.notice(f"{error.message}; shardctl compares the rows, then tries again")
