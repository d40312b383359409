"""Before a load: checks whether it can run, and gives each client its shards."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.topology import ranges
from shardctl.traffic import fleet, table
from shardctl.traffic.client_routes import ClientRoute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardctl.topology.model import ShardId, Topology
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.fleet import Fleet


def plan(
    topology: Topology, aliases: Aliases, shards: Collection[ShardId] | None = None
) -> tuple[Fleet, ClientRoute]:
    """Check whether a load on all or these shards can run; changes nothing.

    Raises no_such_aliases, map_unwritten, owner_unknown, NodeUnavailable, shards_unserved,
    too_many_aliases and table_taken.
    """
    route = ClientRoute.of(topology, aliases)
    found = fleet.look(topology)
    chosen = frozenset(found.map.owners if shards is None else shards)
    if unserved := found.unserved() & chosen:
        raise Refused(
            "shards_unserved",
            f"shards {ranges.of(unserved)} are not live on the nodes that own them",
            hint="run `shardctl verify`; finish or abort an unfinished move first",
        )
    for name, seen in found.nodes.items():
        owned = len(found.holding(name) & chosen)
        if aliases == "shard" and owned > seen.admits:
            raise Refused(
                "too_many_aliases",
                f"node {name} owns {owned:,} shards and needs a session for each alias, "
                f"but accepts only {seen.admits:,} sessions",
                hint=f"give the node `settings: {{max_connections: {owned + 50}}}` and restart it, "
                "or use --aliases node",
            )
    table.require_free(topology, found)
    return found, route


def shares(shards: Sequence[ShardId], clients: int) -> list[list[ShardId]]:
    """Give every client its own shards, in runs, because moves take runs, too.

    With fewer shards than clients, each gets one, and some share it.

    >>> shares([0, 1, 2, 3, 4], 2), shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    count = len(shards)
    if count < clients:
        return [[shards[number % count]] for number in range(clients)]
    bounds = [number * count // clients for number in range(clients + 1)]
    return [list(shards[first:last]) for first, last in pairwise(bounds)]
