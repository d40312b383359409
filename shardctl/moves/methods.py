"""The methods of a move, and how they differ.

| part | defines |
|---|---|
| `accepts` | which nodes can be the target |
| `preflight` | what must be true before the move begins |
| `steps` | what the move does, in order; resuming it runs them again |
| `handover` | how the target takes over in the cutover, one of the steps |
| `admit` | how the target accepts another machine, which continues the move |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.moves import admission, plan, promotion, stream
from shardctl.moves.method import Method
from shardctl.moves.preflight import check as preflight
from shardctl.moves.steps import (
    clone,
    confirm,
    copy,
    cutover,
    follow,
    indexes,
    keep_reverse,
    rehearse,
    reopen,
    reserve,
    retire,
    stream_reserve,
    structure,
    subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.plan import MovePlan

METHODS: Mapping[str, Method] = {
    plan.METHOD: Method(
        "copies the whole source server onto a node without shards, and promotes the copy",
        accepts=plan.require_without_shards,
        preflight=preflight.check,
        steps=(
            reserve.STEP,
            clone.STEP,
            follow.STEP,
            cutover.STEP,
            confirm.STEP,
            retire.STEP,
        ),
        handover=promotion,
        admit=admission.admit,
    ),
    plan.STREAM: Method(
        "copies the shards to a node that serves already, which follows by logical replication",
        accepts=plan.accept,
        preflight=preflight.check,
        steps=(
            stream_reserve.STEP,
            structure.STEP,
            copy.STEP,
            indexes.STEP,
            subscribe.STEP,
            rehearse.STEP,
            keep_reverse.STEP,
            cutover.STREAM_STEP,
            confirm.STEP,
            retire.STEP,
        ),
        handover=stream,
        admit=lambda _: None,
    ),
}

REVERSE = replace(
    METHODS[plan.STREAM],
    sentence="gives shards back to the node from which they were streamed, without a copy",
    steps=(
        stream_reserve.STEP,
        reopen.STEP,
        subscribe.STEP,
        rehearse.STEP,
        cutover.STREAM_STEP,
        confirm.STEP,
        retire.STEP,
    ),
)
"""What reverses a streamed move."""


def of(decided: MovePlan) -> Method:
    """Return the method of a plan."""
    if decided.reverses is not None:
        return REVERSE
    return METHODS[decided.method]
