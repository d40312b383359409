"""Continuing a move from another machine: the clone has to accept that machine's addresses."""

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
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

logger = logging.getLogger(__name__)

_SEEN_AS = "SELECT host(inet_client_addr())"
_SECONDS = 10.0
_POLL = 0.02


def addresses(topology: Topology, target: Node, source: Connection) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to the target.

    They include this machine's address as the `source` sees it.
    """
    row = source.execute(_SEEN_AS).fetchone()
    seen = {row[0]} if row and row[0] else set()
    hosts = {target.host, *(pooler.host for pooler in topology.poolers.values())}
    found = {address for host in hosts for address in ports.addresses(host)}
    return sorted({*found, *seen, *ports.sources(target.host), "127.0.0.1", "::1"})


def known(context: MoveContext) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to a move's target."""
    with context.on(context.plan.source):
        session = context.session(context.plan.source)
        return addresses(context.topology, context.target, session)


def admit(context: MoveContext) -> None:
    """Make the move's clone accept this machine, if it still accepts only listed addresses.

    The source must be reachable. Waits a few seconds until the clone's server accepts a login: if
    it does not, the step that needs it reports why. Raises what its host refuses.
    """
    clone = context.clone
    try:
        if clones.look(clone) != "made":
            return
    except (clones.TargetNotEmpty, clones.CloneOfAnother):
        return  # the clone does not exist yet, or no longer
    plan = context.plan
    with context.on(plan.source):
        source = Source(context.source, context.topology.database)
        rules = copying.rules(source, context.session(plan.source), known(context))
    if not (clones.admit(clone, rules) and clone.server.running()):
        return
    clone.server.reload()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            context.session(plan.target)
        except NodeUnavailable as error:
            logger.debug("move %s: %s", plan.id, error.message)
            time.sleep(_POLL)
        else:
            return
