"""The handover of a clone that follows by a stream: that of a stream, to a server that was made.

See `method.Handover` for the contract of each function, and ADR 34.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.moves import cloned, promotion, stream
from shardctl.postgres import clone as clones
from shardctl.postgres import opening

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_OPEN_S = 10.0

reversible = True
prepare = stream.prepare
serves = stream.serves
catch_up = stream.catch_up
hold_snapshot = stream.hold_snapshot
take_over = stream.take_over
claim = stream.claim
open_up = stream.open_up
settle = stream.settle
release = stream.release
start = promotion.start
require_caught_up = stream.require_caught_up
reconcile = stream.reconcile
remains = cloned.remains


def finish(context: MoveContext) -> None:
    """Remove what is left of the stream and of the clone; put the node's own settings in force.

    Reports parameters that need a restart. Raises clone_not_opened.
    """
    stream.finish(context)
    _settle(context)
    promotion.finish(context)


def _settle(context: MoveContext) -> None:
    clone, target = cloned.of(context), context.plan.target
    try:
        if clones.look(clone) == "absent":
            return
    except clones.TargetNotEmpty:  # a normal node has no mark
        return
    with context.on(target):
        deadline = time.monotonic() + _OPEN_S
        waiting = opening.open_up(clone, context.session(target), deadline).waiting
    if waiting:
        context.notice(promotion.restart_needed(target, waiting))
