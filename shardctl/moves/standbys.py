"""Standbys of a source: one that may be promoted must have the fence and the decision.

A stream overtakes them: a decision can be on the target while the source's standby lacks it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.meter import listed
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.moves", "standbys.sql")

_POLL = 0.001


class StandbysBehind(ShardctlError):
    """Standbys of a source that do not have what must not be lost when they are promoted."""

    def __init__(self, node: str, names: Collection[str], what: str) -> None:
        super().__init__(
            f"node {node}: standbys have not flushed the {what} in time: {listed(sorted(names))}",
            hint="start them, or drop the replication slots of removed standbys, then run "
            "`shardctl moves resume`; if failover is disabled, run `shardctl moves abort` and "
            "start the move again with --ignore-standby",
        )
        self.names = tuple(sorted(names))


def expected(session: Connection) -> frozenset[str]:
    """Name the standbys that may be promoted; one that is away counts by its slot.

    So does one that `synchronized_standby_slots` names (17 and newer).
    """
    return frozenset(name for (name,) in session.execute(QUERIES["expected"]))


def connected(session: Connection) -> str:
    """Give what changes whenever another standby has come."""
    return str(queries.one(session, QUERIES["connected"])[0])


def away(session: Connection) -> frozenset[str]:
    """Name those that are not connected."""
    there = {name for (name,) in session.execute(QUERIES["flushed"], {"lsn": "0/0"})}
    return expected(session) - there


def await_flushed(
    session: Connection,
    node: str,
    standbys: Collection[str],
    lsn: str,
    *,
    what: str,
    deadline: float,
) -> None:
    """Wait until all of them have flushed the WAL up to `lsn`; raises StandbysBehind."""
    left = set(standbys)
    while left:
        left -= {name for (name,) in session.execute(QUERIES["flushed"], {"lsn": lsn})}
        if left:
            if time.monotonic() > deadline:
                raise StandbysBehind(node, left, what)
            time.sleep(_POLL)


def position(session: Connection) -> str:
    """Give up to where the WAL is on the disk."""
    return str(queries.one(session, QUERIES["position"])[0])


def timeline(session: Connection) -> str:
    """Give the timeline that a server writes: after a failover it is another."""
    return str(queries.one(session, QUERIES["timeline"])[0])
