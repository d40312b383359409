"""Waiting for other commands before a plan is made (`--lock-wait`)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.postgres.connection import connect
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.topology.model import Topology


def wait(
    topology: Topology, wait_s: float, *, command: str, notice: Callable[[str], None]
) -> ExitStack:
    """Wait until no other command changes a node; give the turn, to be closed at the end.

    As long as the turn is open, other commands that wait go on waiting. The command itself
    reports nodes that cannot be reached. Raises NodeLocked when the time is over.
    """
    until = time.monotonic() + wait_s
    with ExitStack() as turn:
        # All commands take the nodes in the order of the topology: two never wait for each other.
        for node in topology.nodes.values():
            try:
                session = connect(
                    node, topology.database, purpose=lock.purpose(command), autocommit=True
                )
            except ShardctlError:
                continue
            turn.callback(lock.release, session)
            if (holder := lock.holder(session)) is not None:
                notice(f"waiting for {holder}, which is changing node {node.name}")
            lock.queue(session, node.name, until - time.monotonic())
        return turn.pop_all()
