"""The methods of a move: what each does, in order; resuming a move runs its steps again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves import attempt, confirm, copy, follow, plan, rehearsal, reserve, reverse_kept

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.step import Step


@dataclass(frozen=True, slots=True)
class Method:
    """A method by which shards move to another node."""

    sentence: str
    steps: Sequence[Step]


_END = (attempt.STEP, confirm.STEP, confirm.RETIRE_STEP)

METHODS: Mapping[str, Method] = {
    plan.CLONE: Method(
        "copies the whole source server onto a node without shards, and promotes the copy",
        steps=(reserve.STEP, copy.CLONE_STEP, follow.STEP, *_END),
    ),
    plan.STREAM: Method(
        "copies the shards to a node that serves already, which follows by logical replication",
        steps=(
            reserve.STREAM_STEP,
            copy.STEP,
            follow.STREAM_STEP,
            rehearsal.STEP,
            reverse_kept.STEP,
            *_END,
        ),
    ),
}

REVERSE = Method(
    "gives shards back to the node from which they were streamed, without a copy",
    steps=(reserve.STREAM_STEP, copy.REOPEN_STEP, follow.STREAM_STEP, rehearsal.STEP, *_END),
)
"""What reverses a streamed move."""


def of(decided: MovePlan) -> Method:
    """Return the method of a plan."""
    if decided.reverses is not None:
        return REVERSE
    return METHODS[decided.method]
