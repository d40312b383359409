"""A move that stopped before its end, or whose source or target is destroyed: how to go on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, Refused, ShardctlError, Unfinished, together
from shardctl.hosts import ports
from shardctl.moves import wal
from shardctl.moves.context import NodeRefused
from shardctl.moves.rehearsal import RehearsalRefused
from shardctl.postgres import slots
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect
from shardctl.state import leash
from shardctl.state.journal import MoveState
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology


_ABORTING = "run `shardctl moves abort` to finish the abort, or `shardctl moves resume` to continue"
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

    def __init__(
        self,
        move: str,
        state: MoveState | None,
        error: ShardctlError,
        *,
        kept: str = "",
        aborting: bool = False,
    ) -> None:
        if state is None:
            hint = _UNKNOWN
        elif state.undoable and not all(part.resumable for part in error.parts()):
            hint = _ABORT
        elif state.undoable:
            hint = _ABORTING if aborting else _UNDOABLE
        elif state.closed:
            hint = f"run `shardctl moves show {move}` to see how it ended"
        else:
            hint = _DECIDED
        known = "its state cannot be read" if state is None else f"its state is {state.value}"
        if state is None or state.undoable:
            known += kept
        how = "is not finished" if state is None or not state.closed else "is over"
        super().__init__(f"move {move} {how}: {known}", hint=hint)
        self.state = state
        self.error = error
        if isinstance(error, Interrupted):
            self.exit_code = error.exit_code

    def parts(self) -> list[ShardctlError]:
        """Return the errors that stopped it, then itself."""
        return [*self.error.parts(), self]


@contextmanager
def stopped(context: MoveContext, *, aborting: bool = False) -> Iterator[None]:
    """Raise an error within as MoveStopped, if the move has begun and has not ended.

    Its exit code is 3, or 130 after Ctrl-C.
    """
    move = context.plan.id
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
            raise MoveStopped(
                move, None, error, kept=_kept(context, bounded=None), aborting=aborting
            ) from caught
        if found is None or found.state is MoveState.aborted:
            raise error from caught  # nothing of it is left
        kept = _kept(context, bounded=_bounded(context)) if _keeps_wal(context) else ""
        raise MoveStopped(move, found.state, error, kept=kept, aborting=aborting) from caught


@contextmanager
def aborting(context: MoveContext, abort: Callable[[], None]) -> Iterator[None]:
    """Abort the move if its rehearsal rules it out, or its slot has reached its limit of WAL.

    Raises RehearsalRefused, or WalLimitReached in place of the error that it has caused.
    """
    try:
        yield
    except ShardctlError as error:
        reason = error if isinstance(error, RehearsalRefused) else wal.reached(context)
        if reason is None:
            raise
        try:
            abort()
        except ShardctlError as again:
            raise together([reason, *again.parts()]) from error
        if reason is error:
            raise
        raise reason from error


def _bounded(context: MoveContext) -> bool | None:
    """Return whether the source bounds the WAL of the move's slot; None where that is unknown."""
    try:
        with context.on(context.plan.source):
            return leash.is_armed(context.session(context.plan.source), context.plan.slot)
    except ShardctlError:
        return None


def _keeps_wal(context: MoveContext) -> bool:
    """Tell whether the source has a slot of the move, or cannot be asked for it."""
    try:
        with context.on(context.plan.source):
            session = context.session(context.plan.source)
            return slots.look(session, context.plan.slot) is not None
    except ShardctlError:
        return True


def _kept(context: MoveContext, *, bounded: bool | None) -> str:
    """Return what the source keeps for the move until it is resumed or aborted."""
    source, limit = context.plan.source, context.plan.options.max_wal_bytes
    if limit is None:
        return ""
    if bounded is False:
        return (
            f"; node {source} keeps WAL for it without a limit: the session that bounds it has "
            "ended, for example because the server restarted"
        )
    most = "" if bounded else " until its server restarts"
    return (
        f"; node {source} keeps up to {wal.megabytes(limit)} of WAL for it{most}: then it drops "
        "the slot, and "
        + ("shardctl has to copy again" if context.plan.reverses is None else "nothing is reversed")
    )


def require_not_aborted(context: MoveContext) -> None:
    """See, under the locks, that no other operator has aborted the move; raises move_ended.

    An aborted move is not undoable either, and would be completed as one that is decided.
    """
    move = context.journal()
    if move is not None and move.state is MoveState.aborted:
        raise Refused(
            "move_ended",
            f"move {move.id} was aborted by another command: node {move.source} owns its shards",
            hint="run `shardctl moves list` to see all moves",
        )


class TargetThere(ShardctlError):
    """A target that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves abort` without --target-destroyed; or stop its server",
        )
        self.node = node


class SourceThere(ShardctlError):
    """A source that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves resume` without --source-destroyed; if it is another server "
            "in the node's place, stop that server until the move has ended",
        )
        self.node = node


def require_source_gone(topology: Topology, move: Move, *, purpose: str) -> None:
    """Check that a move may end without its source: the target must own the shards.

    The operator has declared the source destroyed; nothing may listen at its address. Raises
    source_needed, SourceThere.
    """
    source = topology.nodes[NodeName(move.source)]
    if not move.state.claimed_by_target:
        raise Refused(
            "source_needed",
            f"move {move.id} is {move.state.value}: its target has not claimed the shards, so it "
            f"cannot finish without node {source.name}",
            hint="run `shardctl moves resume` without --source-destroyed, which continues as far "
            "as it can",
        )
    try:
        connect(source, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        if ports.knock(source.host, source.port) == "open":
            raise SourceThere(source.name, f"its port is open: {error.reason}") from error
    else:
        raise SourceThere(source.name, "its server answers")


def require_silent(context: MoveContext) -> None:
    """Check that no server answers at the target's address; raises TargetThere."""
    target = context.plan.target
    try:
        context.session(target)
    except NodeUnavailable:
        pass
    else:
        raise TargetThere(target, "its server answers")
    if ports.knock(context.target.host, context.target.port) == "open":
        raise TargetThere(target, "its port is open, but the server rejects logins from here")
