"""The newest map that the databases report within a moment."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import ShardctlError
from shardctl.postgres.connection import connect
from shardctl.state import lock
from shardctl.state.map import READ, Map, of_row

if TYPE_CHECKING:
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import Node, Topology

logger = logging.getLogger(__name__)

_CONNECT_S = 2
"""When a login is given up; the smallest that libpq takes."""


def reports(topology: Topology, *, command: str, within_s: float) -> list[NodeMap]:
    """Ask all nodes at once, with one query each, and give their maps of this cluster.

    Those that have reported one within this time, in s. A thread that still waits then is left to
    itself, for a login cannot be given up sooner than libpq does.
    """
    answers: queue.SimpleQueue[NodeMap | None] = queue.SimpleQueue()
    quick = {**topology.database.options, "connect_timeout": str(_CONNECT_S)}
    database = replace(topology.database, options=quick)

    def ask(node: Node) -> None:
        purpose, row = lock.purpose(command), None
        try:
            with connect(node, database, purpose=purpose, autocommit=True) as session:
                row = session.execute(READ).fetchone()
        except (psycopg.Error, ShardctlError) as error:
            logger.info("node %s: cannot read its map: %s", node.name, error)
        answers.put(of_row(row) if row else None)

    deadline = time.monotonic() + within_s
    for node in topology.nodes.values():
        threading.Thread(target=ask, args=[node], daemon=True).start()
    wanted = Map.of(topology)
    found: list[NodeMap] = []
    for _ in topology.nodes:
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if answer is not None and answer.map.same_cluster(wanted):
            found.append(answer)
    return found
