"""Where and how chunks of shards are made and migrated: what their files share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.postgres.cancelling import Running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology


@dataclass(frozen=True, slots=True)
class Retrying:
    """How a batch meets locks of other sessions: wait `lock_timeout_ms`, `attempts` times in all.

    Between two attempts it waits longer each time, from 0.1 s to 2 s.
    """

    lock_timeout_ms: int = 2000
    attempts: int = 10
    wait_s: float | None = None
    """How long all of it may take together; None: as long as these attempts do.

    It also limits what is done CONCURRENTLY, which otherwise waits as long as it takes.
    """


@dataclass(frozen=True, slots=True)
class Job:
    """Where and how chunks run: one session, used by one thread at a time."""

    connection: Connection
    topology: Topology
    node: NodeName
    retrying: Retrying
    stop: threading.Event = field(default_factory=threading.Event)
    running: Running = field(default_factory=Running)
    """What Ctrl-C cancels: only what is rolled back then."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """By the process id of a session: the last holder of the lock that it waited for."""
