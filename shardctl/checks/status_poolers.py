"""Look at the poolers as they are: version, clients, servers, what is paused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.pgbouncer.console import Console, waited_s
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from shardctl.pgbouncer.console import Row
    from shardctl.topology.model import Pooler, PoolerName, Topology

_SERVERS = ("sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login")


@dataclass(frozen=True, slots=True)
class PoolerStatus:
    """One pooler; `error` explains why its console cannot be used, and then nothing else is known.

    `clients` are served or wait, `waiting` are those that wait for a server, `longest_wait_s`
    is how long the first of them has. `paused` names aliases, of other databases too; all of
    them where the whole pooler is paused. `waits_for` are the clients in transactions on those, for
    whose ends a PAUSE waits.
    """

    name: PoolerName
    error: str | None = None
    version: str | None = None
    clients: int | None = None
    waiting: int | None = None
    servers: int | None = None
    longest_wait_s: float | None = None
    paused: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "name": self.name,
            "state": "up" if self.error is None else "down",
            "version": self.version,
            "clients": self.clients,
            "waiting": self.waiting,
            "servers": self.servers,
            "longest_wait_ms": None
            if self.longest_wait_s is None
            else round(self.longest_wait_s * 1000, 1),
            "paused": list(self.paused),
            "waits_for": list(self.waits_for),
            "error": self.error,
        }


def observe(topology: Topology) -> tuple[PoolerStatus, ...]:
    """Look at all poolers in parallel; one that cannot be looked at explains why."""
    poolers = topology.poolers.values()
    return tuple(fanout.collect(poolers, partial(_look, topology)).every())


def _look(topology: Topology, pooler: Pooler) -> PoolerStatus:
    try:
        with Console(pooler, topology.database, purpose=lock.purpose("status")) as console:
            pools = console.pools()
            offered = console.databases().values()
            held = console.held()
            paused = tuple(one.name for one in offered if held or one.paused)
            return PoolerStatus(
                name=pooler.name,
                version=console.version(),
                clients=_sum(pools, ("cl_active", "cl_waiting")),
                waiting=_sum(pools, ("cl_waiting",)),
                servers=_sum(pools, _SERVERS),
                longest_wait_s=max(map(waited_s, pools), default=0.0),
                paused=paused,
                waits_for=tuple(_in_transaction(console, paused)) if paused else (),
            )
    except ShardctlError as error:
        return PoolerStatus(pooler.name, error=getattr(error, "reason", error.message))


def _in_transaction(console: Console, paused: Collection[str]) -> Iterator[str]:
    """Name the clients of paused databases that have a server, which they keep until COMMIT."""
    for one in console.clients():
        if one["database"] in paused and one["link"]:
            yield f"{one['user']} on {one['database']} from {one['addr']}:{one['port']}"


def _sum(pools: Iterable[Row], columns: Iterable[str]) -> int:
    return sum(int(pool.get(column) or 0) for pool in pools for column in columns)
