"""The rollout's row on all nodes: read and written by the sessions that hold their locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import Refused, together
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.state import cluster, rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.state.rollouts import Rollout
    from shardctl.topology.model import NodeName


def require_current(locks: Mapping[NodeName, Connection], rollout: Rollout) -> None:
    """See that no other operator has changed the rollout; raises rollout_outdated, rollout_open."""
    known = rollouts.merged(
        rollouts.read(session, cluster.read(session)) for session in locks.values()
    )
    for one in known:
        if one.id == rollout.id and one.serial != rollout.serial:
            raise Refused(
                "rollout_outdated",
                f"rollout {one.id} was changed by {one.who} at "
                f"{one.changed:%Y-%m-%d %H:%M:%S %Z}: it is {one.state}, wave {one.wave} of "
                f"{len(one.waves)}",
                hint="run `shardctl migrate status` to see it, then run the command again",
            )
        if one.id != rollout.id and one.open:
            raise rollouts.still_open(one)


def write(locks: Mapping[NodeName, Connection], rollout: Rollout) -> list[NodeLost]:
    """Write the rollout to all nodes; give those that were lost, if any node has it."""

    def work(node: NodeName) -> None:
        try:
            rollouts.write(locks[node], rollout)
        except psycopg.Error as error:
            if not (is_lost(error) or locks[node].closed):
                raise
            raise NodeLost(node, reason_of(error)) from error

    found = fanout.collect(locks, work, width=max(1, len(locks)))
    if found.problems and not found.values:
        raise together(found.errors)
    return [error for error in found.errors if isinstance(error, NodeLost)]
