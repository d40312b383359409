"""Which migration is in which shards, and the rollouts, as all nodes know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.errors import together
from shardctl.state import cluster, lock, observer, rollouts
from shardctl.state import migrations as folder
from shardctl.state.cluster import QUERIES as STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import Connection
    from shardctl.state.migrations import Migration
    from shardctl.state.rollouts import Rollout
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


class Known(NamedTuple):
    """What a node knows: the shards by file and checksum, rollouts, who changes it now."""

    ran: Mapping[tuple[str, str], frozenset[ShardId]]
    rollouts: tuple[Rollout, ...]
    holder: str | None


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of the folder, or one that ran and is not there any more (`migration` None)."""

    name: str
    migration: Migration | None
    done: tuple[ShardId, ...]
    pending: tuple[ShardId, ...]
    differing: tuple[ShardId, ...]
    """Shards that another version of the file ran in."""

    @property
    def state(self) -> str:
        """Describe it in a word."""
        if self.migration is None:
            return "unknown"
        if self.differing:
            return "changed"
        if not self.pending:
            return "done"
        return "partial" if self.done else "pending"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "file": self.name,
            "state": self.state,
            "reversible": self.migration is not None and self.migration.down is not None,
            "done": list(self.done),
            "pending": list(self.pending),
            "differing": list(self.differing),
        }


@dataclass(frozen=True, slots=True)
class Status:
    """What all nodes together know; `unread` are those that could not be asked."""

    files: tuple[FileState, ...]
    rollouts: tuple[Rollout, ...]
    holders: Mapping[NodeName, str]
    unread: tuple[ShardctlError, ...]

    @property
    def open(self) -> Rollout | None:
        """Give the rollout that still goes on."""
        return next((one for one in self.rollouts if one.open), None)

    @property
    def killed(self) -> bool:
        """Return whether no command carries out the wave that is recorded as running."""
        return self.open is not None and self.open.state == "running" and not self.holders


def look(topology: Topology, *, command: str) -> Status:
    """Ask all nodes; raises their errors where none answers."""
    asked = observer.ask(topology, _ask, purpose=lock.purpose(command), nodes=topology.owning())
    if not asked.values:
        raise together(asked.problems)
    return Status(
        tuple(files(topology, folder.read(topology.database.migrations), asked.values)),
        tuple(rollouts.merged(one.rollouts for one in asked.values.values())),
        {name: one.holder for name, one in asked.values.items() if one.holder},
        tuple(asked.problems),
    )


def _ask(session: Connection, node: Node) -> Known:
    state = cluster.read(session) if cluster.is_present(session) else None
    if state is None:
        return Known({}, (), None)
    owned = frozenset(node.shards)
    ran = {
        (file, checksum): owned.intersection(shards)
        for file, checksum, shards in session.execute(STATE["migrations"])
    }
    missing = cluster.missing(session, state)
    return Known(ran, () if missing else rollouts.read(session, state), lock.holder(session))


def files(
    topology: Topology, known: Sequence[Migration], nodes: Mapping[NodeName, Known]
) -> list[FileState]:
    """Compare the folder with what ran in the shards of these nodes; pure."""
    everywhere = {shard for name in nodes for shard in topology.nodes[name].shards}
    ran: dict[str, dict[str, set[ShardId]]] = {}
    for node in nodes.values():
        for (file, checksum), shards in node.ran.items():
            ran.setdefault(file, {}).setdefault(checksum, set()).update(shards)
    by_name = {one.name: one for one in known}
    found = []
    for name in [*by_name, *sorted(ran.keys() - by_name.keys())]:
        migration = by_name.get(name)
        versions = ran.get(name, {})
        has = {shard for shards in versions.values() for shard in shards}
        done = has if migration is None else versions.get(migration.checksum, set())
        found.append(
            FileState(
                name,
                migration,
                tuple(sorted(done)),
                () if migration is None else tuple(sorted(everywhere - has)),
                tuple(sorted(has - done)),
            )
        )
    return found
