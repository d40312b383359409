"""What a check is: a look at each node, and a judgement over all that was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shardctl.fanout import Silent
from shardctl.postgres.cancelling import Running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.checks.basics import Basics
    from shardctl.checks.findings import Finding, Rules
    from shardctl.checks.poolers_look import Looked
    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Node, NodeName, PoolerName, ShardId, Topology

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Place:
    """One node that is looked at, over a session of its own, read only, in autocommit.

    `shards` are those that the topology gives to the node and whose schema is live there,
    by schema name.
    """

    topology: Topology
    migrations: Sequence[Migration]
    node: Node
    connection: Connection
    basics: Basics
    shards: Mapping[str, ShardId]
    deep: bool
    running: Running = field(default_factory=Running)
    """What Ctrl-C cancels."""
    progress: Progress = field(default_factory=Silent)
    """What a look that takes long reports to, under the node's name."""


@dataclass(frozen=True, slots=True)
class View(Generic[Seen]):
    """All that was seen, for a judgement; nodes that could not be looked at are not in it.

    `seen` holds what the check's own look gave, by node, in the topology's order.
    """

    topology: Topology
    migrations: Sequence[Migration]
    basics: Mapping[NodeName, Basics]
    seen: Mapping[NodeName, Seen]
    deep: bool
    poolers: Mapping[PoolerName, Looked] = field(default_factory=dict)
    """What was seen of poolers, for the one check that is about them."""
    moves: Sequence[Entry] = ()
    """All moves of the cluster, as all journals together have them, the newest first."""

    def clone(self, node: NodeName) -> bool:
        """Return whether a server is the copy that an open move makes, as it should be.

        Until it has claimed its shards, it describes itself as its source does.
        """
        state = self.basics[node].state
        return (
            state is not None
            and state.cluster == self.topology.cluster
            and any(move.clones(node, state.node) for move in self.moves)
        )


class Look(Protocol):
    """Ask a node a fixed number of questions, however many shards it has."""

    def __call__(self, place: Place) -> Any:
        """Give what `judge` will find in `View.seen`; psycopg.Error may be raised."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the registry.

    `look` is None where what every check knows (`Basics`) is enough; `judge` is pure.
    """

    rules: Rules
    about: str
    judge: Judge
    look: Look | None = None

    @property
    def name(self) -> str:
        """The check's name."""
        return self.rules.check


class Judge(Protocol):
    """Turn what was seen into findings."""

    def __call__(self, view: View[Any]) -> Iterable[Finding]:
        """Give findings, each fault once."""
