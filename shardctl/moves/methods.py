"""The methods of a move: each is a list of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves.steps import clear, clone, confirm, cutover, follow, reserve, retire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.step import Step

METHODS: Mapping[str, Sequence[Step]] = {
    "clone": (
        reserve.STEP,
        clear.STEP,
        clone.STEP,
        follow.STEP,
        cutover.STEP,
        confirm.STEP,
        retire.STEP,
    ),
}
