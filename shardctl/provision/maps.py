"""The map as the nodes know it, beside what the topology has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shardctl.errors import Problems, Refused, together
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import agreement, refusals
from shardctl.provision.agreement import NodeLeftOut
from shardctl.provision.observe import Said
from shardctl.state import cluster, identity, ledger, observer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology


def map_unwritten() -> Refused:
    """Report a fleet on which `init` has not finished, so no node has the map."""
    return Refused(
        "map_unwritten",
        "no node has the map, so the owners of the shards are unknown",
        hint="run `shardctl init`, which also updates the poolers",
    )


def require(
    topology: Topology,
    planned: int,
    *,
    purpose: str,
    absent: Sequence[NodeUnavailable] = (),
    needed: Collection[NodeName] | None = None,
) -> None:
    """See that the map is still the one of a plan that was made without `absent` nodes.

    `needed` as of `version`. Raises map_changed, and what `agreed` raises.
    """
    now = agreed(topology, purpose=purpose, strict=not absent, absent=absent, needed=needed).version
    if now != planned:
        raise Refused(
            "map_changed",
            f"the map changed after the plan was made (version {planned}, now {now}); nothing was "
            "done",
            hint="run the command again to see the new plan",
        )


def require_beside(
    topology: Topology,
    shards: Collection[int],
    between: Collection[str],
    *,
    purpose: str,
) -> None:
    """Refuse a topology that contradicts a node's map, while a move of `shards` is unfinished.

    Either node of `between` may own these. Nodes that cannot be read are left out. Raises
    OwnershipDiffers, or Problems of several.
    """
    wanted = topology.owners()

    def beside(session: Connection, _node: Node) -> Said:
        row = cluster.read(session) if cluster.is_present(session) else None
        if row is None:
            return Said(None, {}, ())
        owners = {
            shard: wanted.get(shard, owner) if shard in shards and owner in between else owner
            for shard, owner in cluster.read_map(session).items()
        }
        return Said(row.map_version, owners, ())

    asked = observer.ask(topology, beside, purpose=purpose)
    if problems := refusals.ownership(topology, asked.values):
        raise together(problems)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The map's version, and the nodes that could not be read, the rest agreeing on it."""

    version: int
    unread: tuple[NodeUnavailable, ...] = ()

    @property
    def left_out(self) -> tuple[NodeLeftOut, ...]:
        """The nodes that could not be read, as what is left to do."""
        return tuple(NodeLeftOut(one.node, one.reason) for one in self.unread)


def required(topology: Topology, needed: Collection[NodeName]) -> Collection[NodeName]:
    """Name the nodes that a move between the `needed` ones cannot do without."""
    return needed if topology.poolers else [node.name for node in topology.owning()]


def agreed(
    topology: Topology,
    *,
    purpose: str,
    strict: bool = True,
    absent: Sequence[NodeUnavailable] = (),
    needed: Collection[NodeName] | None = None,
) -> Agreed:
    """Read the newest version of the map, and refuse a topology that contradicts a node's.

    Every node that owns shards has to be reachable; with `needed`, only these, where there are
    poolers: their files have the version of the newest map, and the caller compares them. Unless
    `strict`, nodes may be away. Then those that can be read have to agree on the whole map, and no
    absent node may be part of a move that they know as open: the aliases of its shards could not
    be proved. `absent` nodes are not tried again. Raises map_unwritten, NodeUnavailable,
    OwnershipDiffers, move_in_doubt, and what `identity.check` and `agreement.left_out` raise.
    """
    away = {one.node for one in absent}
    there = [node for node in topology.nodes.values() if node.name not in away]
    asked = observer.ask(topology, partial(known, topology), purpose=purpose, nodes=there)
    said = asked.values
    unread = [*absent, *(one for one in asked.problems if isinstance(one, NodeUnavailable))]
    problems = [one for one in asked.problems if not isinstance(one, NodeUnavailable)]
    problems += refusals.ownership(topology, said)
    if needed is not None:
        unread = [one for one in unread if one.node in required(topology, needed)]
    if problems:
        raise together([*unread, *problems])
    agreement.left_out(topology, said, unread, strict=strict)
    if doubts := agreement.doubted_moves(said, unread):
        raise Problems([*unread, *doubts])
    newest = max((one.version or 0 for one in said.values()), default=0)
    if newest == 0:
        raise map_unwritten()
    return Agreed(newest, tuple(unread))


def known(topology: Topology, session: Connection, node: Node) -> Said:
    """Read what a node knows of the map and of moves; raises what `identity.check` raises."""
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None:
        return Said(None, {}, ())
    copies = ledger.copies(session, topology, node.name, row)
    if identity.is_clone(session, node, row):
        return Said(None, {}, copies)
    identity.check(row, topology, node.name)
    return Said(row.map_version, cluster.read_map(session), copies)
