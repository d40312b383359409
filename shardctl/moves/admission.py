"""Going on with a move from another machine than the one whose addresses its clone knows."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shardctl.hosts import ports
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.connection import NodeUnavailable
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

logger = logging.getLogger(__name__)

_SEEN_AS = "SELECT host(inet_client_addr())"
_SECONDS = 10.0
_POLL = 0.02


def addresses(topology: Topology, target: Node, source: Connection) -> list[str]:
    """List the addresses from which shardctl and its guards log in to the target.

    The one under which the `source` knows this machine is among them.
    """
    row = source.execute(_SEEN_AS).fetchone()
    seen = {row[0]} if row and row[0] else set()
    hosts = {target.host, *(pooler.host for pooler in topology.poolers.values())}
    found = {address for host in hosts for address in ports.addresses(host)}
    return sorted({*found, *seen, *ports.sources(target.host), "127.0.0.1", "::1"})


def admit(world: World) -> None:
    """Let this machine log in to the move's clone, if that is closed yet; its source is there.

    Waits until the clone's server has read that, for a while: it may be starting, and whoever
    needs it says why it does not answer. Raises what its host refuses.
    """
    try:
        if clones.look(world.clone) != "made":
            return
    except (clones.TargetNotEmpty, clones.CloneOfAnother):
        return  # it is not there any more, or not yet
    plan = world.plan
    with world.on(plan.source):
        source = Source(world.source, world.topology.database)
        rules = copying.rules(source, world.session(plan.source), world.addresses())
    if not (clones.admit(world.clone, rules) and world.clone.server.running()):
        return
    world.clone.server.reload()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            world.session(plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", plan.id, error.message)
            time.sleep(_POLL)
        else:
            return
