"""Retire: closes the move; its retired schemas wait for prune."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import file, promotion, stream
from shardctl.moves.step import Step
from shardctl.state import events, journal
from shardctl.state.journal import MoveState
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext

_OVER = (MoveState.unconfirmed, MoveState.done)


def probe(context: MoveContext) -> bool:
    """Return whether the journals on both nodes say that the move is over."""
    newest = context.journal()
    if newest is None or newest.state not in _OVER:
        return False
    for node in context.journal_nodes:
        with context.on(node):
            copy = journal.find(context.session(node), context.plan.id)
        if copy is None or copy.state not in _OVER:
            return False  # it would block the next move there
    return True


def run(context: MoveContext) -> None:
    """Make the target a normal node, and close the journal on both nodes.

    Raises FileNotEdited the first time the topology file cannot be written.
    """
    plan = context.plan
    _write_file(context)
    handover = stream if plan.streams else promotion
    handover.finish(context)
    newest = context.journal()
    if newest is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    # Without a comparison that found no difference the move stays unconfirmed.
    state = MoveState.done if newest.proof == "compared" else MoveState.unconfirmed
    result = f"shards {ranges.of(plan.shards)} moved from {plan.source} to {plan.target}"
    for node in context.journal_nodes:
        with context.on(node):
            session = context.session(node)
            journal.copy(session, newest)
            if journal.advance(session, plan.id, [MoveState.routed], state):
                events.record(session, "move-shards", f"move {plan.id}: {result}")


def _write_file(context: MoveContext) -> None:
    """Write the new owners into the topology file, unless it has them."""
    try:
        file.write(context.topology, context.plan, context.after)
    except file.FileNotEdited as error:
        if not context.file_by_hand:
            raise
        context.notice(f"{error.message}: {error.hint}")


STEP = Step("retire", "closes the move; retired schemas wait for `retain`", probe, run)
