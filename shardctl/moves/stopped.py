"""A move that stopped before its end, or whose source or target is destroyed: how to go on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, Refused, ShardctlError, Unfinished, together
from shardctl.hosts import ports
from shardctl.moves import wal
from shardctl.moves.context import NodeRefused
from shardctl.moves.rehearsal import RehearsalRefused
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import leash
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node


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
        self, move: str, state: MoveState | None, error: ShardctlError, *, kept: str = ""
    ) -> None:
        if state is None:
            hint = _UNKNOWN
        elif state.undoable:
            hint = _UNDOABLE if all(part.resumable for part in error.parts()) else _ABORT
        elif state.closed:
            hint = f"run `shardctl moves show {move}` to see how it ended"
        else:
            hint = _DECIDED
        known = "its state cannot be read" if state is None else f"its state is {state.value}"
        if state is not None and state.undoable:
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
        raise MoveStopped(context.plan.id, found.state, error, kept=_kept(context)) from caught


def _kept(context: MoveContext) -> str:
    """Return how much WAL the source keeps for the move, if it bounds that at this moment."""
    source, limit = context.plan.source, context.plan.options.max_wal_bytes
    try:
        with context.on(source):
            armed = leash.is_armed(context.session(source), context.plan.slot)
    except ShardctlError:
        return ""
    if limit is None or not armed:
        return ""
    return f"; node {source} keeps up to {wal.megabytes(limit)} of WAL for it"


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


def require_source_gone(source: Node, move: Move) -> None:
    """Check that a move may end without its source: the target must own the shards.

    The operator has declared the source destroyed. Raises source_needed, node_there.
    """
    if not move.state.claimed_by_target:
        raise Refused(
            "source_needed",
            f"move {move.id} is {move.state.value}: its target has not claimed the shards, so it "
            f"cannot finish without node {source.name}",
            hint="run `shardctl moves resume` without --source-destroyed, which continues as far "
            "as it can",
        )
    require_silent(source)


def require_silent(node: Node) -> None:
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
