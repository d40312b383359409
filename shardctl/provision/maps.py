"""The map as all nodes know it, beside what the topology says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import refusals
from shardctl.state import cluster, identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.model import Node, NodeName, ShardId, Topology

_WIDTH = 16


class MapUnwritten(ShardctlError):
    """A fleet on which `init` has not finished: nobody says yet who owns the shards."""

    def __init__(self) -> None:
        super().__init__(
            "no node has the map yet, so nobody says who owns the shards",
            hint="run `shardctl init`, which applies the poolers, too",
        )


class MapChanged(ShardctlError):
    """A map that became another between the plan that was shown and the locks that were taken."""

    def __init__(self, planned: int, now: int) -> None:
        super().__init__(
            f"the map changed after the plan was made (version {planned}, now {now}); "
            "nothing was done",
            hint="run the command again to see the new plan",
        )


def require(topology: Topology, planned: int, *, purpose: str) -> None:
    """See that the map is still the one of a plan; raises MapChanged and what `version` raises."""
    now = version(topology, purpose=purpose)
    if now != planned:
        raise MapChanged(planned, now)


def version(topology: Topology, *, purpose: str) -> int:
    """Read the newest version of the map, and refuse a topology that contradicts a node's.

    Every node that owns shards has to be there. Raises MapUnwritten, NodeUnavailable,
    OwnershipDiffers and what `identity.check` raises, or Problems of several.
    """
    versions: list[int] = []
    maps: dict[NodeName, Mapping[ShardId, NodeName]] = {}
    problems: list[ShardctlError] = []
    outcomes = fanout.run(
        topology.nodes.values(), lambda node: _read(topology, node, purpose), width=_WIDTH
    )
    for outcome in outcomes:
        node, error = outcome.item, outcome.error
        if error is None:
            found, maps[node.name] = outcome.result()
            versions.append(found)
        elif isinstance(error, NodeUnavailable) and not node.shards:
            continue  # it waits to be cloned onto
        elif isinstance(error, psycopg.Error):
            address = f"{node.host}:{node.port}"
            problems.append(NodeUnavailable(node.name, address, reason_of(error)))
        elif isinstance(error, ShardctlError):
            problems.append(error)
        else:
            raise error
    problems += refusals.ownership(topology, maps)
    if problems:
        raise together(problems)
    newest = max(versions, default=0)
    if newest == 0:
        raise MapUnwritten
    return newest


def _read(topology: Topology, node: Node, purpose: str) -> tuple[int, Mapping[ShardId, NodeName]]:
    with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
        if cluster.is_clone_of_a_move(session, node) or not cluster.is_present(session):
            return 0, {}
        row = cluster.read(session)
        if row is None:
            return 0, {}
        identity.check(row, topology, node.name)
        return row.map_version, cluster.read_map(session)
