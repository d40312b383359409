"""What prune reads: all nodes' maps, and their retired schemas with users and dependents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from shardctl.checks.leftovers_moves import measure_retired
from shardctl.postgres import blocking, catalog, event_triggers, queries
from shardctl.postgres.connection import NodeUnavailable
from shardctl.postgres.event_triggers import EventTriggerRefuses
from shardctl.state import cluster, identity, lock, observer
from shardctl.state.lock import NodeLocked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

QUERIES = queries.load("shardctl.moves", "prune.sql")

_LOCK_TIMEOUT = "1s"


@dataclass(frozen=True, slots=True)
class View:
    """One node's map and schemas; facts about retired schemas are by their names.

    `contents` has the number of a schema's objects, and an outside object that CASCADE would drop;
    `users` a lock of a session there; `sizes` its bytes, unless a lock prevented the measurement.
    """

    version: int
    map: Mapping[ShardId, NodeName]
    live: frozenset[str]
    retired: Sequence[str]
    contents: Mapping[str, tuple[int, str | None]]
    users: Mapping[str, Held]
    sizes: Mapping[str, int]
    clock: datetime
    locked: ShardctlError | None = None
    """Why the node cannot be changed at this moment."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The views of all nodes that could be asked."""

    topology: Topology
    views: Mapping[NodeName, View]

    @property
    def newest(self) -> list[View]:
        """List the views with the newest version of the map."""
        version = max((view.version for view in self.views.values()), default=0)
        return [view for view in self.views.values() if view.version == version]


def look(topology: Topology, purpose: str) -> Fleet:
    """Query all nodes; some may be unreachable.

    Raises NodeUnavailable where no node that owns shards answers, and what `identity.check` raises,
    or Problems for several.
    """
    asked = observer.ask(topology, partial(_view, topology), purpose=purpose)
    others = [one for one in asked.problems if not isinstance(one, NodeUnavailable)]
    if others or not any(node.name in asked.values for node in topology.owning()):
        asked.every()
    return Fleet(topology, asked.values)


def _view(topology: Topology, session: Connection, node: Node) -> View:
    wanted = [topology.schema(shard) for shard in topology.owners()]
    session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
    state = cluster.read(session) if cluster.is_present(session) else None
    if state is None or identity.is_clone(session, node, state):
        return View(0, {}, frozenset(), (), {}, {}, {}, datetime.now(UTC))
    identity.check(state, topology, node.name)
    retired, clock = session.execute(QUERIES["retired"]).fetchone() or (None, None)
    named = {"schemas": retired or []}
    return View(
        version=state.map_version,
        map=cluster.read_map(session),
        live=frozenset(catalog.present(session, wanted)),
        retired=retired or (),
        contents={
            name: (objects, outside and blocking.with_session(session, outside))
            for name, objects, outside in session.execute(QUERIES["contents"], named)
        },
        # Another prune, verify or status measures sizes; a drop waits for it.
        users=users(session, retired or [], passing=False),
        sizes={one.schema: one.size_bytes or 0 for one in measure_retired(session, retired or [])},
        clock=clock or datetime.now(UTC),
        locked=_locked(session, node.name),
    )


def users(session: Connection, schemas: Sequence[str], *, passing: bool = True) -> dict[str, Held]:
    """Give for each schema the lock of a session there; of one that soon ends only if `passing`."""
    found = blocking.held(session, schemas)
    return {one.schema: one for one in reversed(found) if passing or not one.by.passes}


def _locked(session: Connection, node: NodeName) -> ShardctlError | None:
    try:
        lock.require_free(session, node)
        event_triggers.rehearse(session, node, "prune")
    except (NodeLocked, EventTriggerRefuses) as error:
        return error
    return None
