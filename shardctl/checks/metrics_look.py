"""Look at all nodes and poolers at once for `metrics`; one that is down does not delay the rest."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.checks import status, status_look, status_poolers
from shardctl.checks.metrics import Scrape
from shardctl.checks.status_nodes import NodeStatus, State
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.pgbouncer import render

if TYPE_CHECKING:
    from shardctl.checks.last_verify import LastVerify
    from shardctl.checks.status_poolers import PoolerStatus
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Pooler, Topology

logger = logging.getLogger(__name__)

_WIDTH = 64
_COMMAND = "metrics"


def observe(topology: Topology, *, verified: LastVerify | None) -> Scrape:
    """Read the fleet once; what cannot be read is down, or has no value."""
    now, began = datetime.now(UTC), time.monotonic()
    nodes: list[NodeStatus] = []
    poolers: list[PoolerStatus] = []
    versions: list[int | None] = []
    of_poolers = topology.poolers.values()

    def ask_nodes() -> None:
        work = partial(_node, topology)
        nodes.extend(fanout.collect(topology.nodes.values(), work, width=_WIDTH).every())

    def ask_poolers() -> None:
        work = partial(status_poolers.look, topology, command=_COMMAND)
        poolers.extend(fanout.collect(of_poolers, work, width=_WIDTH).every())

    def read_files() -> None:
        work = partial(_map_version, topology)
        versions.extend(fanout.collect(of_poolers, work, width=_WIDTH).every())

    fanout.at_once(ask_nodes, ask_poolers, read_files)
    read = zip(topology.poolers, versions, strict=True)
    return Scrape(
        status=status.together(topology, now, nodes, poolers),
        ids=topology.id,
        pooler_maps={name: version for name, version in read if version is not None},
        verified=verified,
        duration_s=time.monotonic() - began,
    )


def _node(topology: Topology, node: Node) -> NodeStatus:
    sessions: dict[NodeName, Connection] = {}
    try:
        return status_look.look(topology, node, sessions, command=_COMMAND, each_shard=False)
    except ShardctlError as error:  # such as a schema `shardctl` that is another program's
        return NodeStatus(node.name, State.unreadable, node.shards, error=error.message)
    finally:
        for session in sessions.values():
            session.close()


def _map_version(topology: Topology, pooler: Pooler) -> int | None:
    """Read the version from a pooler's file; None if it is unreadable or another cluster's."""
    try:
        text = files.read(host_of(pooler), pooler.databases_file, user=pooler.os_user)
    except ShardctlError as error:
        logger.info("pooler %s: cannot read the version of its map: %s", pooler.name, error)
        return None
    header = render.header(text or "")
    return header.map_version if header and header.cluster == topology.cluster else None
