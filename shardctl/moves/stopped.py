"""A move that stopped half-way: what stopped it, and how to go on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted, ShardctlError, Unfinished
from shardctl.moves import wal
from shardctl.moves.context import NodeRefused
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.state import leash
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.context import MoveContext

_ABORTING = "`shardctl moves abort` goes on calling it off, `shardctl moves resume` goes on with it"
_UNDOABLE = "`shardctl moves resume` goes on with it, `shardctl moves abort` calls it off"
_DECIDED = "`shardctl moves resume` finishes it; it is past the point where it could be called off"
_UNKNOWN = (
    "`shardctl moves list` tells more when that node is there again; if it cannot start because "
    "its disk is full: `shardctl moves abort {move} --restart-source NODE`"
)


class MoveStopped(Unfinished):
    """What is left of a move, told behind the error that stopped it; `state` None is unknown."""

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
            hint = _UNKNOWN.format(move=move)
        elif state.undoable:
            hint = _ABORTING if aborting else _UNDOABLE
        else:
            hint = _DECIDED
        how_far = "its state cannot be read now" if state is None else f"its state is {state.value}"
        if state is None or state.undoable:
            how_far += kept
        super().__init__(f"move {move} is not finished: {how_far}", hint=hint)
        self.state = state
        self.error = error
        if isinstance(error, Interrupted):
            self.exit_code = error.exit_code

    def parts(self) -> list[ShardctlError]:
        """List what stopped it, then itself."""
        return [*self.error.parts(), self]


@contextmanager
def stopped(context: MoveContext, *, aborting: bool = False) -> Iterator[None]:
    """Let an error that stops a move tell how to go on, if it was begun and has not ended.

    Raises MoveStopped, whose exit code is 3, or 130 after Ctrl-C.
    """
    move = context.plan.id
    try:
        yield
    except (KeyboardInterrupt, ShardctlError) as caught:
        error = caught if isinstance(caught, ShardctlError) else Interrupted("interrupted")
        try:
            context.session(context.plan.source)
            context.look_for_target()
            found = context.journal()
        except (NodeUnavailable, NodeLost, NodeRefused):
            raise MoveStopped(
                move, None, error, kept=_kept(context, guarded=None), aborting=aborting
            ) from caught
        if found is None or found.state is MoveState.aborted:
            raise error from caught  # nothing of it is left
        kept = _kept(context, guarded=_guarded(context))
        raise MoveStopped(move, found.state, error, kept=kept, aborting=aborting) from caught


def _guarded(context: MoveContext) -> bool | None:
    """Tell whether the source watches the move's slot; None where that cannot be asked."""
    try:
        with context.on(context.plan.source):
            return leash.is_armed(context.session(context.plan.source), context.plan.slot)
    except ShardctlError:
        return None


def _kept(context: MoveContext, *, guarded: bool | None) -> str:
    """Say what the source keeps for the move until that goes on or is aborted."""
    source, limit = context.plan.source, context.plan.options.max_wal_bytes
    if limit is None:
        return ""
    if guarded is False:
        return (
            f"; node {source} may keep WAL for it without a limit: the guard of its slot has "
            "ended, as with a restart of the server"
        )
    most = "" if guarded else " while its server is not restarted"
    return (
        f"; node {source} keeps WAL for it, {wal.megabytes(limit)} at most{most}: "
        "then it drops the slot, and the copy has to be made again"
    )
