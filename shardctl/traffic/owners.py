"""The map as an application knows it: read from the nodes when needed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl.state import cluster
from shardctl.traffic import client_routes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.model import Node, NodeName, ShardId, Topology

_EVERY_S = 0.01
_AFTER_FAILURE_S = 0.05
_CONNECT_S = 2
"""The least connect_timeout of libpq."""


@dataclass(frozen=True, slots=True)
class Map:
    """A complete version of the map."""

    version: int
    owners: Mapping[ShardId, NodeName]


class Owners:
    """The newest map on any node.

    A thread for each node reads it every 10 ms while a client waits for a newer one, so that a node
    that hangs delays no client. It logs in as applications do: it sees no map where they are
    rejected.
    """

    def __init__(self, topology: Topology, first: Map) -> None:
        self._topology = topology
        self.newest = first
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._wanted_until = 0.0
        # Daemons: a thread whose node hangs must not block the end of the process.
        self._watchers = [
            threading.Thread(target=self._watch, args=(node,), daemon=True, name=f"map-{node.name}")
            for node in topology.nodes.values()
        ]

    def start(self) -> None:
        """Start the threads, which wait for `look`."""
        for watcher in self._watchers:
            watcher.start()

    def look(self) -> None:
        """Read the nodes' maps for a second."""
        self._wanted_until = time.monotonic() + 1.0
        self._wanted.set()

    def newer(self, than: int, *, seconds: float) -> bool:
        """Wait for a map above version `than`; return whether there is one."""
        self.look()
        with self._changed:
            return self._changed.wait_for(lambda: self.newest.version > than, timeout=seconds)

    def stop(self) -> None:
        """End the threads, except those whose node hangs."""
        self._stopped.set()
        self._wanted.set()
        for watcher in self._watchers:
            if watcher.ident is not None:
                watcher.join(_CONNECT_S)

    def _watch(self, node: Node) -> None:
        """Read one node's map, as long as a client waits for it."""
        options = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": _CONNECT_S * 1000}
        conninfo = client_routes.direct(self._topology, node, **options)
        while self._wait_until_wanted():
            try:
                with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as session:
                    while not self._is_idle():
                        self._ask(session)
                        if self._stopped.wait(_EVERY_S):
                            break
            except psycopg.Error:  # unreachable: another node has the map
                self._stopped.wait(_AFTER_FAILURE_S)

    def _wait_until_wanted(self) -> bool:
        """Wait until a client needs a newer map; return False at the end."""
        if self._is_idle():
            self._wanted.clear()
            if self._is_idle():  # no request came between the two lines above
                self._wanted.wait()
        return not self._stopped.is_set()

    def _is_idle(self) -> bool:
        return time.monotonic() > self._wanted_until and not self._stopped.is_set()

    def _ask(self, session: psycopg.Connection[tuple[object, ...]]) -> None:
        row = cluster.read(session)  # before the map, which then is of this version or newer
        if row is None or row.map_version <= self.newest.version:
            return
        found = Map(row.map_version, cluster.read_map(session))
        with self._changed:
            if found.version > self.newest.version:
                self.newest = found
                self._changed.notify_all()
