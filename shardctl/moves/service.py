"""The operations on a move: plan, start, resume, abort."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import UsageError
from shardctl.moves import copy, cutover, file, follow, methods, rehearsal, reserve, wal
from shardctl.moves import ledger as ledgers
from shardctl.moves import plan as planning
from shardctl.moves.context import MoveContext
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import MovePlan, PlanUnreadable
from shardctl.moves.preflight import check
from shardctl.moves.preflight import poolers as preflight_poolers
from shardctl.moves.step import NotAbortable, drive, undo
from shardctl.moves.stopped import (
    aborting,
    require_not_aborted,
    require_silent,
    require_source_gone,
    stopped,
)
from shardctl.postgres import slots
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.state import cluster, identity, leash, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.ledger import Ledger
    from shardctl.moves.plan import Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Node, NodeName, Topology

    Notice = Callable[[str], None]

logger = logging.getLogger(__name__)

COMMAND = "move-shards"


def plan(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    options: Options,
    *,
    method: str | None = planning.CLONE,
) -> MovePlan:
    """Return the plan of a move, by the topology and the databases' map; changes nothing.

    With `method` None, the target decides. Raises UsageError, and what `plan.make` and
    `maps.agreed` raise.
    """
    if method is not None and method not in METHODS:
        raise UsageError(f"unknown method {method!r}", hint=f"choose one of: {', '.join(METHODS)}")
    # Report what the topology alone forbids before contacting any node.
    decided = planning.make(topology, shards, target, 0, options)
    method = method or _fitting(topology, topology.nodes[decided.target])
    if method != planning.STREAM:
        planning.require_without_shards(topology.nodes[decided.target])
    _require_options(method, options)
    needed = (decided.source, decided.target)
    version = maps.agreed(topology, purpose=lock.purpose(COMMAND), needed=needed).version
    keep_s = options.keep_reverse_s if method == planning.STREAM else 0.0
    return replace(
        decided,
        map_version=version,
        method=method,
        options=replace(options, keep_reverse_s=keep_s),
        reverse=planning.new_id() if keep_s else None,
    )


def _fitting(topology: Topology, target: Node) -> str:
    """Give the method that fits a target: `stream` where it is a running member of the cluster."""
    if target.shards:
        return planning.STREAM
    try:
        with connect(target, topology.database, purpose=lock.purpose(COMMAND)) as session:
            row = cluster.read(session) if cluster.is_present(session) else None
    except NodeUnavailable:
        return planning.CLONE
    member = row is not None and (row.cluster, row.node) == (topology.cluster, target.name)
    return planning.STREAM if member else planning.CLONE


def _require_options(method: str, options: Options) -> None:
    """Refuse options that do not fit a method; raises MoveRefused."""
    given = {
        planning.CLONE: {
            "--identity": options.identity_full,
            "--rehearse-only": options.rehearse_only,
        },
        planning.STREAM: {"--duplicate-shared": options.duplicate_shared},
    }
    for option, is_given in given[method].items():
        if is_given:
            raise planning.MoveRefused(
                f"{option} has no meaning for a move by method {method}",
                hint="leave it out, or choose the other method by --method",
            )


def preflight(topology: Topology, decided: MovePlan) -> Facts:
    """Check everything that a move depends on; raises every refusal at once."""
    return check.check(topology, decided, purpose=lock.purpose(COMMAND))


def start(
    topology: Topology,
    decided: MovePlan,
    progress: Progress,
    on_step: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
) -> MoveContext:
    """Run a move from its first step to its last; return the context with its timeline.

    `notice` reports to the operator while a step runs. Raises topology_changed, map_changed,
    MoveUnderWay, and MoveStopped with what a step raises once the move has begun.
    """
    context = at_work(topology, decided, progress, notice)
    with closing(context):
        context.lock(decided.source)
        context.session(decided.source)
        # The operator may have looked at the plan for a long time.
        file.require_unchanged(topology, decided)
        needed = (decided.source, decided.target)
        maps.require(topology, decided.map_version, purpose=context.purpose, needed=needed)
        reserve.require_alone(context)
        for node in decided.locked:
            # It may have been away while shards moved between other nodes.
            with context.on(node):
                cutover.write_map(context, node, topology.owners(), decided.map_version)
        _drive(context, on_step)
    return context


def resume(
    topology: Topology,
    entry: Entry,
    progress: Progress,
    on_step: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
    max_pause_s: float | None = None,
    max_wal_bytes: int | None = None,
    terminate: bool = False,
    source_destroyed: bool = False,
) -> MoveContext:
    """Continue a move where it stopped; return the context with its timeline.

    Before its cutover, a move can get a longer pause or `terminate`, and another limit of WAL. With
    `source_destroyed`, a move whose target has claimed ends by the target's journal alone. Raises
    what `require_resumable` raises, and MoveStopped with what a step raises.
    """
    decided = require_resumable(
        topology,
        entry,
        max_pause_s=max_pause_s,
        terminate=terminate,
        source_destroyed=source_destroyed,
    )
    if max_wal_bytes is not None:
        decided = replace(decided, options=replace(decided.options, max_wal_bytes=max_wal_bytes))
    before = planning.before(topology, decided)
    context = at_work(before, decided, progress, notice)
    context.file_by_hand = True
    with closing(context):
        if source_destroyed:
            context.source_lost = True
            _drive(context, on_step)
            return context
        try:
            context.lock(decided.source)
            context.session(decided.source)
        except NodeUnavailable as error:
            # Clients can be served anyway, if the target already owns the shards.
            context.look_for_target()
            if not context.past_cutover():
                raise
            notice(f"continuing without node {decided.source}: {error.reason}")
        else:
            if max_wal_bytes is not None:
                with context.on(decided.source):  # the step `reserve` arms another one
                    leash.end(context.session(decided.source), decided.slot)
            if not decided.streams:
                copy.admit(context)
            elif decided.source in planning.elsewhere(topology, decided):
                follow.reconnect(context)
        _drive(context, on_step)
    return context


def abort(
    topology: Topology,
    entry: Entry,
    progress: Progress,
    on_step: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
    target_destroyed: bool = False,
) -> None:
    """Abort a move; with `target_destroyed` nothing is undone on its target.

    The fence goes first, for which no target is needed but after a failover of the source. Raises
    what `require_abortable` raises, and MoveStopped with what a step's undo raises.
    """
    decided = require_abortable(topology, entry, with_target=not target_destroyed)
    before = planning.before(topology, decided)
    context = at_work(before, decided, progress, notice, command="moves abort")
    with closing(context):
        context.lock(decided.source)
        source = context.session(decided.source)
        with stopped(context):
            with context.on(decided.source):
                if slots.keeps(source, decided.slot) and not leash.is_armed(source, decided.slot):
                    # It stays where the target is away, and a restart has ended its guard.
                    limit = decided.options.max_wal_bytes or 0
                    wal.bound(context, decided.source, decided.slot, limit)
            if target_destroyed:
                require_silent(context.target)
                context.target_lost = True
            else:
                context.look_for_target()
            undo(context, context.method.steps, on_step)


def require_resumable(
    topology: Topology,
    entry: Entry,
    *,
    max_pause_s: float | None = None,
    terminate: bool = False,
    source_destroyed: bool = False,
) -> MovePlan:
    """Check that a move can continue with this topology; return its plan.

    Raises move_ended, TopologyChanged, OwnershipDiffers, PlanUnreadable, PoolerUnfit
    where clients time out during the pause, source_needed, node_there, NodeLocked while another
    process runs the move, and NodeUnavailable of a source that is still needed.
    """
    decided = _decided(topology, entry, command="moves resume")
    if source_destroyed:
        require_source_gone(topology.nodes[decided.source], entry.move)
    options = decided.options
    pause = max_pause_s or options.max_pause_s
    changed = replace(options, max_pause_s=pause, terminate=terminate or options.terminate)
    decided = replace(decided, options=changed)
    if pause > options.max_pause_s and entry.move.state.undoable:
        preflight_poolers.require_patience(topology, decided, purpose=lock.purpose("moves resume"))
    if entry.holder:
        nodes = (decided.source, decided.target)
        lock.require_all_free(topology, nodes, command="moves resume", may_be_away=True)
    return decided


def require_abortable(topology: Topology, entry: Entry, *, with_target: bool = True) -> MovePlan:
    """Check that a move can be aborted: the source owns the shards.

    Raises move_ended, NotAbortable, TopologyChanged, OwnershipDiffers, PlanUnreadable, NodeLocked
    while another command changes the source, or the target if that is asked, and NodeUnavailable
    of the source.
    """
    entry.require_open()
    if not entry.move.state.undoable:
        raise NotAbortable(entry.move.id, entry.move.state.value)
    decided = _decided(topology, entry, command="moves abort")
    try:
        lock.require_all_free(topology, [decided.source], command="moves abort")
    except NodeUnavailable as error:
        error.hint = f"{error.hint}; if {ledgers.FULL}"
        raise
    if with_target and entry.holder:
        lock.require_all_free(topology, decided.locked, command="moves abort", may_be_away=True)
    return decided


def at_work(
    topology: Topology,
    decided: MovePlan,
    progress: Progress,
    notice: Notice = logger.warning,
    *,
    command: str = COMMAND,
) -> MoveContext:
    """Return the context of a move; its locks show command, move and operator to others."""
    purpose = lock.purpose(f"{command} {decided.id}")
    return MoveContext(topology, decided, methods.of(decided), progress, purpose, notice)


def _decided(topology: Topology, entry: Entry, *, command: str) -> MovePlan:
    """Return the plan of an unfinished move, if this version and this topology fit it.

    The shards that the move leaves where they are must be where the databases' map has
    them: its poolers' files and the topology file are written from this topology.
    """
    entry.require_open()
    decided = MovePlan.of_journal(entry.move)
    if decided.method not in METHODS:
        raise PlanUnreadable(decided.id, f"unknown method {decided.method}")
    planning.require_same(topology, decided, proved=_proved(topology, decided))
    between = (decided.source, decided.target)
    maps.require_beside(topology, decided.shards, between, purpose=lock.purpose(command))
    return decided


def _proved(topology: Topology, decided: MovePlan) -> list[NodeName]:
    """List the nodes that listen elsewhere than the plan has them and are what they were.

    The target of a clone gets its address from the plan. Raises NodeUnavailable, node_unfit.
    """
    found = [one for one in planning.elsewhere(topology, decided) if one in decided.systems]
    for name in found:
        node = topology.nodes[name]
        purpose = lock.purpose("moves")
        with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
            identity.check_moved(
                session,
                topology,
                node,
                expected=decided.systems[name],
                clone_slot=decided.slot,
            )
    return found


def read(topology: Topology) -> Ledger:
    """Read the journals of all moves."""
    return ledgers.read(topology, purpose=lock.purpose("moves"))


def _drive(context: MoveContext, on_step: Callable[[Step], None]) -> None:
    """Run the remaining steps; undo a move that ends with its rehearsal. Raises move_ended.

    Abort one that its rehearsal rules out, or whose slot has reached its limit of WAL.
    """
    steps = context.method.steps
    context.look_for_target()
    require_not_aborted(context)

    def abort() -> None:
        undo(context, steps, on_step)

    with stopped(context), aborting(context, abort):
        if context.plan.options.rehearse_only and not context.past_cutover():
            drive(context, rehearsal.until(steps), on_step)
        else:
            drive(context, steps, on_step)
            return
    context.notice("the rehearsal has ended: shardctl removes what it has made")
    with stopped(context):
        undo(context, rehearsal.until(steps), lambda _: None)
