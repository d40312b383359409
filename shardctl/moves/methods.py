"""The methods of a move: what each does, in order; resuming a move runs its steps again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves import plan
from shardctl.moves.steps import (
    clone,
    confirm,
    copy,
    cutover,
    follow,
    keep_reverse,
    rehearse,
    reopen,
    reserve,
    retire,
    stream_reserve,
    subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.step import Step


@dataclass(frozen=True, slots=True)
class Method:
    """A method by which shards move to another node."""

    sentence: str
    steps: Sequence[Step]


METHODS: Mapping[str, Method] = {
    plan.METHOD: Method(
        "copies the whole source server onto a node without shards, and promotes the copy",
        steps=(
            reserve.STEP,
            clone.STEP,
            follow.STEP,
            cutover.STEP,
            confirm.STEP,
            retire.STEP,
        ),
    ),
    plan.STREAM: Method(
        "copies the shards to a node that serves already, which follows by logical replication",
        steps=(
            stream_reserve.STEP,
            copy.STEP,
            subscribe.STEP,
            rehearse.STEP,
            keep_reverse.STEP,
            cutover.STREAM_STEP,
            confirm.STEP,
            retire.STEP,
        ),
    ),
}

REVERSE = Method(
    "gives shards back to the node from which they were streamed, without a copy",
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
