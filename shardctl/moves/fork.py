"""Where a target's timeline left its source's: it must have had all that was committed there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Unfinished
from shardctl.postgres import timeline

if TYPE_CHECKING:
    from shardctl.moves.world import World


class ForkedTooEarly(Unfinished):
    """A target whose timeline left the source's before the source was drained."""

    def __init__(self, move: str, forked: str, drained: str) -> None:
        super().__init__(
            f"move {move}: the target left the source's timeline at {forked}, before {drained}",
            hint="what was committed between may be on the source only, under the retired names; "
            "nothing will be pruned: please report it",
        )


def require(world: World, drained: str) -> None:
    """See that the target, no standby any more, went its own way at or after `drained`.

    Raises ForkedTooEarly.
    """
    with world.on(world.plan.target):
        found = timeline.forked_at(world.session(world.plan.target))
    at = found.lsn if found else "0/0"
    if timeline.position(at) < timeline.position(drained):
        raise ForkedTooEarly(world.plan.id, at, drained)
