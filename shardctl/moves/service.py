"""The operations on a move, by its method: plan, start, resume, abort; how one that stops goes on.

Resuming a move runs the steps of its method again.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, Refused, ShardctlError, Unfinished, UsageError, together
from shardctl.hosts import ports
from shardctl.moves import (
    attempt,
    confirm,
    copy,
    cutover,
    file,
    follow,
    rehearsal,
    reserve,
    reverse_kept,
    wal,
)
from shardctl.moves import plan as planning
from shardctl.moves.context import MoveContext, NodeRefused
from shardctl.moves.plan import MovePlan, PlanUnreadable
from shardctl.moves.preflight import check
from shardctl.moves.preflight import poolers as preflight_poolers
from shardctl.moves.step import NotAbortable, drive, undo
from shardctl.postgres import slots
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.state import cluster, identity, leash, lock
from shardctl.state import ledger as ledgers
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.plan import Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry, Ledger
    from shardctl.topology.model import Node, NodeName, Topology

    Notice = Callable[[str], None]

COMMAND = "move-shards"


_END = (attempt.STEP, confirm.STEP, confirm.RETIRE_STEP)

METHODS: Mapping[str, Sequence[Step]] = {
    planning.CLONE: (reserve.STEP, copy.CLONE_STEP, follow.STEP, *_END),
    planning.STREAM: (
        reserve.STREAM_STEP,
        copy.STEP,
        follow.STREAM_STEP,
        rehearsal.STEP,
        reverse_kept.STEP,
        *_END,
    ),
}
"""The steps of each method, in order."""
REVERSE = (reserve.STREAM_STEP, copy.REOPEN_STEP, follow.STREAM_STEP, rehearsal.STEP, *_END)
"""The steps of what reverses a streamed move, without a copy."""


def steps_of(decided: MovePlan) -> Sequence[Step]:
    """Return the steps of a move."""
    return METHODS[decided.method] if decided.reverses is None else REVERSE


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
    if method == planning.CLONE and (there := topology.nodes[decided.target].shards):
        raise planning.MoveRefused(
            f"node {decided.target} already owns shards {ranges.of(there)}",
            hint="method clone needs a node without shards: add one to the topology",
        )
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
    others = {"--duplicate-shared": options.duplicate_shared}
    if method == planning.CLONE:
        others = {"--identity": options.identity_full, "--rehearse-only": options.rehearse_only}
    if given := [option for option, is_given in others.items() if is_given]:
        raise planning.MoveRefused(
            f"{given[0]} has no meaning for a move by method {method}",
            hint="leave it out, or choose the other method by --method",
        )


def preflight(topology: Topology, decided: MovePlan) -> Facts:
    """Check everything that a move depends on; raises every refusal at once."""
    return check.check(topology, decided, purpose=lock.purpose(COMMAND))


def start(topology: Topology, decided: MovePlan, progress: Progress, notice: Notice) -> MoveContext:
    """Run a move from its first step to its last; return the context with its timeline.

    `notice` tells the operator of each step as it begins, and of what it meets. Raises
    topology_changed, map_changed, MoveUnderWay, and MoveStopped with what a step raises once the
    move has begun.
    """
    context = at_work(topology, decided, progress, notice)
    with closing(context):
        context.lock(decided.source)
        context.session(decided.source)
        # The operator may have looked at the plan for a long time.
        file.require_unchanged(topology, decided)
        needed = (decided.source, decided.target)
        agreed = maps.agreed(topology, purpose=context.purpose, needed=needed)
        agreed.require(decided.map_version)
        reserve.require_alone(context)
        for node in decided.locked:
            # It may have been away while shards moved between other nodes.
            with context.on(node):
                cutover.write_map(context, node, topology.owners(), decided.map_version)
        _drive(context)
    return context


def resume(
    topology: Topology, entry: Entry, progress: Progress, notice: Notice, given: Given
) -> MoveContext:
    """Continue a move where it stopped; return the context with its timeline.

    Raises what `require_resumable` raises, and MoveStopped with what a step raises.
    """
    decided = require_resumable(topology, entry, given)
    before = planning.before(topology, decided)
    context = at_work(before, decided, progress, notice)
    context.file_by_hand = True
    with closing(context):
        if given.source_destroyed:
            context.source_lost = True
            _drive(context)
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
            if given.max_wal_bytes is not None:
                with context.on(decided.source):  # the step `reserve` arms another one
                    leash.end(context.session(decided.source), decided.slot)
            if not decided.streams:
                copy.admit(context)
            elif decided.source in planning.elsewhere(topology, decided):
                follow.reconnect(context)
        _drive(context)
    return context


def abort(
    topology: Topology,
    entry: Entry,
    progress: Progress,
    notice: Notice,
    *,
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
                _require_silent(context.target)
                context.target_lost = True
            else:
                context.look_for_target()
            undo(context, steps_of(decided))


@dataclass(frozen=True, slots=True)
class Given:
    """What an operator gives a move that is resumed; all but the last only before its cutover.

    With `source_destroyed`, a move whose target has claimed ends by the target's journal alone.
    """

    max_pause_s: float | None = None
    max_wal_bytes: int | None = None
    terminate: bool = False
    source_destroyed: bool = False


def require_resumable(topology: Topology, entry: Entry, given: Given) -> MovePlan:
    """Check that a move can continue with this topology; return its plan.

    Raises move_ended, TopologyChanged, OwnershipDiffers, PlanUnreadable, PoolerUnfit
    where clients time out during the pause, source_needed, node_there, NodeLocked while another
    process runs the move, and NodeUnavailable of a source that is still needed.
    """
    decided = _decided(topology, entry, command="moves resume")
    if given.source_destroyed:
        if not entry.move.state.claimed_by_target:
            raise Refused(
                "source_needed",
                f"move {decided.id} is {entry.move.state.value}: its target has not claimed the "
                f"shards, so it cannot finish without node {decided.source}",
                hint="run `shardctl moves resume` without --source-destroyed, which continues as "
                "far as it can",
            )
        _require_silent(topology.nodes[decided.source])
    options = decided.options
    pause = given.max_pause_s or options.max_pause_s
    changed = replace(
        options,
        max_pause_s=pause,
        max_wal_bytes=given.max_wal_bytes or options.max_wal_bytes,
        terminate=given.terminate or options.terminate,
    )
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
    lock.require_all_free(topology, [decided.source], command="moves abort")
    if with_target and entry.holder:
        lock.require_all_free(topology, decided.locked, command="moves abort", may_be_away=True)
    return decided


def at_work(
    topology: Topology,
    decided: MovePlan,
    progress: Progress,
    notice: Notice,
    *,
    command: str = COMMAND,
) -> MoveContext:
    """Return the context of a move; its locks show command, move and operator to others."""
    purpose = lock.purpose(f"{command} {decided.id}")
    return MoveContext(topology, decided, progress, purpose, notice)


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


def _drive(context: MoveContext) -> None:
    """Run the remaining steps; undo a move that ends with its rehearsal. Raises move_ended.

    Abort one that its rehearsal rules out, or whose slot has reached its limit of WAL: raises
    RehearsalRefused, or WalLimitReached in place of the error that it has caused.
    """
    context.look_for_target()
    # Under the locks: an aborted move is not undoable, and would be completed like a decided one.
    if (move := context.journal()) is not None and move.state is MoveState.aborted:
        raise Refused(
            "move_ended",
            f"move {move.id} was aborted by another command: node {move.source} owns its shards",
            hint="run `shardctl moves list` to see all moves",
        )
    every = steps = steps_of(context.plan)
    if context.plan.options.rehearse_only and not context.past_cutover():
        steps = rehearsal.until(every)
    with stopped(context):
        try:
            drive(context, steps)
        except ShardctlError as error:
            refused = isinstance(error, rehearsal.RehearsalRefused)
            if (reason := error if refused else wal.reached(context)) is None:
                raise
            try:
                undo(context, every)
            except ShardctlError as again:
                raise together([reason, *again.parts()]) from error
            if refused:
                raise
            raise reason from error
        if steps is not every:
            context.notice("the rehearsal has ended: shardctl removes what it has made")
            undo(context, steps)


_UNDOABLE = "run `shardctl moves resume` to continue it, or `shardctl moves abort` to undo it"
_LOST = "start node {node} if its server is down"
_ABORT = "run `shardctl moves abort` to undo it; it cannot be resumed"
_DECIDED = "run `shardctl moves resume` to finish it; it can no longer be aborted"
_UNKNOWN = (
    "run `shardctl moves list` when that node is reachable again; if it cannot start because its "
    "disk is full, see docs/operations/failures.md"
)


class MoveStopped(Unfinished):
    """The state of a stopped move, reported after the error that stopped it; None is unknown."""

    def __init__(self, move: str, state: MoveState | None, error: ShardctlError) -> None:
        what = "is not finished"
        if state is None:
            hint = _UNKNOWN
        elif state.undoable:
            hint = _UNDOABLE if all(part.resumable for part in error.parts()) else _ABORT
        elif state.closed:
            what, hint = "is over", f"run `shardctl moves show {move}` to see how it ended"
        else:
            hint = _DECIDED
        known = f"its state is {state.value}" if state else "its state cannot be read"
        super().__init__(f"move {move} {what}: {known}", hint=hint)
        self.state = state
        self.error = error
        if isinstance(error, Interrupted):
            self.exit_code = error.exit_code

    def parts(self) -> list[ShardctlError]:
        """Return the errors that stopped it, then itself."""
        return [*self.error.parts(), self]


@contextmanager
def stopped(context: MoveContext) -> Iterator[None]:
    """Raise an error within as MoveStopped, if the move has begun and has not ended.

    Its exit code is 3, or 130 after Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, ShardctlError) as caught:
        error = caught if isinstance(caught, ShardctlError) else Interrupted("interrupted")
        for part in error.parts():
            if isinstance(part, NodeLost):  # the same command would not go on with the move
                part.hint = _LOST.format(node=part.node)
        try:
            context.session(context.plan.source)
            context.look_for_target()
            found = context.journal()
        except (NodeUnavailable, NodeLost, NodeRefused):
            raise MoveStopped(context.plan.id, None, error) from caught
        if found is None or found.state is MoveState.aborted:
            raise error from caught  # nothing of it is left
        raise MoveStopped(context.plan.id, found.state, error) from caught


def _require_silent(node: Node) -> None:
    """Check that nothing listens at the address of a node that was declared destroyed.

    Raises node_there.
    """
    if ports.knock(node.host, node.port) == "open":
        raise Refused(
            "node_there",
            f"node {node.name} is not destroyed: its port is open",
            hint="run the command again without --source-destroyed or --target-destroyed; if "
            "another server is in the node's place, stop that until the move has ended",
        )
