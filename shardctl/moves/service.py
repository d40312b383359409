"""What operators ask for: plan a move, carry it out, go on with it, call it off."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import UsageError
from shardctl.fanout import Silent
from shardctl.hosts import ports
from shardctl.moves import destroyed, prediction, wal
from shardctl.moves import ledger as ledgers
from shardctl.moves import plan as planning
from shardctl.moves.context import MoveContext
from shardctl.moves.distance import Distance
from shardctl.moves.fences import FENCES
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import MovePlan, PlanUnreadable
from shardctl.moves.preflight import poolers as preflight_poolers
from shardctl.moves.step import NotAbortable, drive, undo
from shardctl.moves.steps import reserve
from shardctl.moves.stopped import stopped
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.state import leash, lock
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.ledger import Ledger
    from shardctl.moves.plan import Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import NodeName, Topology

    Notice = Callable[[str], None]

logger = logging.getLogger(__name__)

COMMAND = "move-shards"


def plan(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    options: Options,
    *,
    method: str = planning.METHOD,
) -> MovePlan:
    """Decide what a move does, by the topology and the databases' map; changes nothing.

    Raises UsageError, and what `plan.make` and `maps.version` raise.
    """
    if method not in METHODS:
        raise UsageError(
            f"{method!r} is no method of a move", hint=f"methods: {', '.join(METHODS)}"
        )
    # What the topology alone forbids is told before anybody is asked.
    decided = planning.make(topology, shards, target, 0, options)
    chosen = METHODS[method]
    chosen.accepts(topology.nodes[decided.target])
    version = maps.version(topology, purpose=lock.purpose(COMMAND))
    return replace(decided, map_version=version, method=method, waiting=chosen.fence)


def preflight(topology: Topology, decided: MovePlan) -> Facts:
    """Look at everything that a move depends on; raises every refusal at once."""
    return METHODS[decided.method].preflight(topology, decided, purpose=lock.purpose(COMMAND))


def start(
    topology: Topology,
    decided: MovePlan,
    progress: Progress,
    told: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
) -> MoveContext:
    """Carry a move out from its first step to its last; gives the context with its timeline.

    `notice` tells the operator something while a step is at work. Raises map_changed,
    MoveUnderWay, and MoveStopped with what a step raises once something was begun.
    """
    context = at_work(topology, decided, progress, notice)
    with closing(context):
        context.lock(decided.source)
        context.session(decided.source)
        # The operator may have thought about the plan for long.
        maps.require(topology, decided.map_version, purpose=context.purpose)
        reserve.require_alone(context)
        _drive(context, told)
    return context


def resume(
    topology: Topology,
    entry: Entry,
    progress: Progress,
    told: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
    max_pause_s: float | None = None,
    max_wal_bytes: int | None = None,
    terminate: bool = False,
    source_destroyed: bool = False,
) -> MoveContext:
    """Go on with a move wherever it stopped.

    A cutover that is yet to come may be given more time than was planned, or `terminate`, and the
    source may keep more or less WAL than was planned. With
    `source_destroyed` a move that the target has claimed is ended by what that has of it.
    Raises what `require_resumable` raises, and MoveStopped with what a step raises.
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
    _tell_missing(topology, decided, notice)
    with closing(context):
        if source_destroyed:
            context.source_lost = True
            _drive(context, told)
            return context
        try:
            context.lock(decided.source)
            context.session(decided.source)
        except NodeUnavailable as error:
            # Its clients can be served all the same, if the target owns the shards already.
            context.look_for_target()
            if not context.past_cutover():
                raise
            notice(f"going on without node {decided.source}: {error.reason}")
        else:
            if max_wal_bytes is not None:
                with context.on(
                    decided.source
                ):  # the step that arms it finds none, and arms another
                    leash.end(context.session(decided.source), decided.slot)
            context.method.admit(context)
        _drive(context, told)
    return context


def abort(
    topology: Topology,
    entry: Entry,
    progress: Progress,
    told: Callable[[Step], None],
    *,
    notice: Notice = logger.warning,
    target_destroyed: bool = False,
) -> None:
    """Take a move back; with `target_destroyed` also from `promoting`.

    Raises what `require_abortable` raises, and MoveStopped with what a step's undoing raises.
    """
    decided = require_abortable(topology, entry, target_destroyed=target_destroyed)
    before = planning.before(topology, decided)
    context = at_work(before, decided, progress, notice, command="moves abort")
    _tell_missing(topology, decided, notice)
    with closing(context):
        context.lock(decided.source)
        context.session(decided.source)
        with stopped(context, aborting=True):
            if entry.move.state is MoveState.promoting:
                destroyed.take_back(context)
            undo(context, context.method.steps, told)


def require_resumable(
    topology: Topology,
    entry: Entry,
    *,
    max_pause_s: float | None = None,
    terminate: bool = False,
    source_destroyed: bool = False,
) -> MovePlan:
    """See that a move can go on, with this topology.

    Raises move_ended, TopologyChanged, PlanUnreadable, PauseTooShort, PoolerUnfit where clients do
    not outlast the pause, SourceNeeded, SourceThere, NodeLocked while another process is at it, and
    NodeUnavailable of a source that is needed yet.
    """
    decided = _decided(topology, entry, may_be_there=False)
    if source_destroyed:
        purpose = lock.purpose("moves resume")
        destroyed.require_source_gone(topology, entry.move, purpose=purpose)
    options = decided.options
    pause = max_pause_s or options.max_pause_s
    changed = replace(options, max_pause_s=pause, terminate=terminate or options.terminate)
    decided = replace(decided, options=changed)
    if max_pause_s is not None and entry.move.state.undoable:
        # How far all are is measured before the cutover, and this again with that.
        prediction.require_time(planning.before(topology, decided), decided, Distance())
    if pause > options.max_pause_s and entry.move.state.undoable:
        preflight_poolers.require_patience(topology, decided, purpose=lock.purpose("moves resume"))
    if entry.move.state.undoable and not source_destroyed:
        lock.require_all_free(topology, [decided.source], command="moves resume")
    _require_free(topology, entry, (decided.source, decided.target))
    return decided


def require_abortable(
    topology: Topology, entry: Entry, *, target_destroyed: bool = False
) -> MovePlan:
    """See that the source still owns the shards, or that it can have them back.

    Raises move_ended, NotAbortable, TopologyChanged, PlanUnreadable, what
    `destroyed.require_gone` raises, NodeLocked while another is at it, and NodeUnavailable of
    the source.
    """
    entry.require_open()
    promoting = entry.move.state is MoveState.promoting
    if not (entry.move.state.undoable or (promoting and target_destroyed)):
        raise NotAbortable(entry.move.id, entry.move.state.value)
    decided = _decided(topology, entry, may_be_there=not promoting)
    lock.require_all_free(topology, [decided.source], command="moves abort")
    if promoting:
        before = planning.before(topology, decided)
        with closing(at_work(before, decided, Silent(), command="moves abort")) as context:
            destroyed.require_gone(context)
    return decided


def at_work(
    topology: Topology,
    decided: MovePlan,
    progress: Progress,
    notice: Notice = logger.warning,
    *,
    command: str = COMMAND,
) -> MoveContext:
    """Give the context of a move; operators who meet its locks read command, move and operator."""
    purpose = lock.purpose(f"{command} {decided.id}")
    return MoveContext(topology, decided, METHODS[decided.method], progress, purpose, notice)


def _decided(topology: Topology, entry: Entry, *, may_be_there: bool) -> MovePlan:
    """Give the plan of a move that has not ended, if this version and this topology fit it.

    A pooler may have been taken out of the topology since, if nobody listens at its address any
    more, or `may_be_there`: it would be cut off from the moved shards, or not be asked.
    """
    entry.require_open()
    decided = MovePlan.of_journal(entry.move)
    if decided.method not in METHODS:
        raise PlanUnreadable(decided.id, f"it has a method {decided.method}")
    if decided.fence not in FENCES:
        raise PlanUnreadable(decided.id, f"it has a fence {decided.fence}")
    missing = planning.missing_poolers(topology, decided)
    gone = [name for name, at in missing.items() if may_be_there or ports.knock(*at) != "open"]
    planning.require_same(topology, decided, gone=gone)
    return decided


def _tell_missing(topology: Topology, decided: MovePlan, notice: Notice) -> None:
    for name, (host, port) in planning.missing_poolers(topology, decided).items():
        notice(f"pooler {name} ({host}:{port}) is not in the topology any more: it is left alone")


def _require_free(topology: Topology, entry: Entry, nodes: Iterable[NodeName]) -> None:
    """See that those who held a lock when the journal was read have let go; raises NodeLocked."""
    for name in nodes if entry.holder else ():
        try:
            node, purpose = topology.nodes[name], lock.purpose("moves")
            with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
                lock.require_free(session, name)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", entry.move.id, error.message)


def read(topology: Topology) -> Ledger:
    """Read the journal of all moves."""
    return ledgers.read(topology, purpose=lock.purpose("moves"))


def _drive(context: MoveContext, told: Callable[[Step], None]) -> None:
    """Do what is left of the move; one whose slot reached its limit of WAL is aborted."""
    steps = context.method.steps
    context.look_for_target()
    with stopped(context), wal.aborting(context, lambda: undo(context, steps, told)):
        drive(context, steps, told)
