"""Open, for a clone that hands over by stream: clients may log in, and no shard serves them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.moves import cloned
from shardctl.moves.step import Step
from shardctl.postgres import clone as clones
from shardctl.postgres import opening

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_SECONDS = 10.0


def probe(context: MoveContext) -> bool:
    """See whether the clone has the node's own rules for clients."""
    return context.past_cutover() or clones.look(cloned.of(context)) == "opened"


def run(context: MoveContext) -> None:
    """Put the node's own rules for clients into force; raises clone_not_opened."""
    target = context.plan.target
    with context.on(target):
        deadline = time.monotonic() + _SECONDS
        opening.open_logins(cloned.of(context), context.session(target), deadline)


STEP = Step("open", "lets clients log in to the clone, whose shards refuse them", probe, run)
