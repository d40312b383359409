"""The methods of a move, and in what they differ.

| part | says |
|---|---|
| `accepts` | which nodes can be its target |
| `preflight` | what must be true before it begins |
| `steps` | what it does, in order; going on with a move is running them again |
| `handover` | how the target takes over in the cutover, one of its steps |
| `fence` | what keeps clients from the source then; with `--read-only`, always triggers |
| `admit` | how another machine gets to log in to the target, to go on with the move |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import admission, plan, promotion
from shardctl.moves.method import Method
from shardctl.moves.preflight import check as preflight
from shardctl.moves.steps import clear, clone, confirm, cutover, follow, reserve, retire

if TYPE_CHECKING:
    from collections.abc import Mapping

METHODS: Mapping[str, Method] = {
    "clone": Method(
        "copies the whole source server onto a node without shards, and promotes the copy",
        accepts=plan.require_without_shards,
        preflight=preflight.check,
        steps=(
            reserve.STEP,
            clear.STEP,
            clone.STEP,
            follow.STEP,
            cutover.STEP,
            confirm.STEP,
            retire.STEP,
        ),
        handover=promotion,
        fence=plan.RENAME,
        admit=admission.admit,
    ),
}
