"""All nodes as they are today, and those that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision.observe import observe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardctl.provision.observe import Observed
    from shardctl.topology.model import NodeName, Topology

_WIDTH = 16


def look(
    topology: Topology,
    command: str,
    tables: Collection[str],
    absent: Sequence[NodeUnavailable],
    members: Collection[NodeName] = (),
) -> tuple[list[Observed], list[str], list[NodeUnavailable]]:
    """Observe all nodes but the absent ones; give what is seen, notes, and who cannot be read.

    A node that owns no shards need not be there (that is a note). `members` get a database all the
    same. Raises what else is wrong.
    """
    away = {one.node for one in absent}
    seen = fanout.collect(
        [node for node in topology.nodes.values() if node.name not in away],
        lambda node: observe(
            topology, node, command=command, tables=tables, member=node.name in members
        ),
        width=_WIDTH,
    )
    notes: list[str] = []
    unread: list[NodeUnavailable] = list(absent)
    problems: list[ShardctlError] = []
    for node, error in seen.problems:
        if isinstance(error, NodeUnavailable) and not node.shards:
            notes.append(f"spare node {node.name} is down: {error.reason}")
        elif isinstance(error, NodeUnavailable):
            unread.append(error)
        else:
            problems.append(error)
    if problems:
        raise together([*unread, *problems])
    return [one for _, one in seen.values], notes, unread
