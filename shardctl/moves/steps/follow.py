"""Follow: the clone runs as a standby and comes near its source."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.moves.step import Step
from shardctl.moves.world import NodeRefused
from shardctl.postgres import opening, slots, standby
from shardctl.postgres.connection import NodeLost, NodeUnavailable

if TYPE_CHECKING:
    from shardctl.moves.world import World

logger = logging.getLogger(__name__)

_SECONDS = 24 * 3600.0
_ASK_AGAIN_S = 60.0
_POLL = 0.05
_FEEDBACK = "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s"


def probe(world: World) -> bool:
    """See whether the target's lock is held by us: it is taken when the standby is near."""
    return world.past_cutover() or world.holds(world.plan.target)


def run(world: World) -> None:
    """Start the standby, wait until it streams and its lag is small, take its lock.

    While it catches up, replay breaks off every question that could hold it up, a login too:
    so it is asked again as long as its server runs, and that ends when the source knows what
    the standby looks at.
    """
    target = world.plan.target
    standby.start(world.clone)
    deadline = time.monotonic() + _ASK_AGAIN_S
    while True:
        try:
            _follow(world)
        except (NodeUnavailable, NodeLost, NodeRefused, standby.NotFollowing) as error:
            if not world.clone.server.running() or time.monotonic() > deadline:
                raise
            world.require_lock(world.plan.source)  # without the source there is nothing to follow
            logger.debug("move %s: asking node %s again: %s", world.plan.id, target, error)
            world.forget(target)
            time.sleep(_POLL)
        else:
            return


def _follow(world: World) -> None:
    plan = world.plan
    with world.on(plan.target):
        standby.follow(
            world.clone,
            world.session(plan.source),
            world.session(plan.target),
            progress=world.progress,
            timeout=_SECONDS,
        )
        opening.require_closed(
            world.clone, world.session(plan.target), world.topology.database.user
        )
    _wait_for_feedback(world)
    world.lock(plan.target)


def _wait_for_feedback(world: World) -> None:
    """Wait until the source keeps what sessions of the standby may look at."""
    session = world.session(world.plan.source)
    deadline = time.monotonic() + _ASK_AGAIN_S
    with world.on(world.plan.source):
        while True:
            row = session.execute(_FEEDBACK, [world.plan.slot]).fetchone()
            if row is not None and row[0]:
                return
            slots.require(session, world.plan.target, world.plan.slot)
            if time.monotonic() > deadline:
                raise NoFeedback(world.plan.target)
            time.sleep(_POLL)


class NoFeedback(ShardctlError):
    """A standby that does not tell its source what it looks at."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node}: its source has had no feedback of it for {_ASK_AGAIN_S:g} s",
            hint="see the clone's log for why it does not stream, then `shardctl moves resume`",
        )


STEP = Step("follow", "starts the standby and waits until it is near", probe, run)
