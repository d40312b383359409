"""What `sql` is to run, and where; nothing is changed by finding out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.maintenance import places as placing
from shardctl.maintenance import statements
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.maintenance.places import Places
    from shardctl.postgres.split import Statement
    from shardctl.topology.model import ShardId, Topology

COMMAND = "sql"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run where; `shards` None stands for every node instead."""

    topology: Topology
    statements: tuple[Statement, ...]
    places: Places
    shards: tuple[ShardId, ...] | None
    write: bool

    @property
    def for_log(self) -> str:
        """The statements for events and logs."""
        return statements.for_log("; ".join(one.text for one in self.statements))


def plan(topology: Topology, text: str, *, shards: Sequence[ShardId] | None, write: bool) -> Plan:
    """Decide what runs where; asks all nodes, changes nothing.

    Raises statement_invalid, what `places.look` and `of_shards` raise; to write also what
    `Fleet.require_settled` raises, and the errors of nodes that could not be asked.
    """
    found = statements.parse(text)
    chosen = choose(topology, shards, write=write)
    return Plan(topology, found, chosen, None if shards is None else tuple(shards), write)


def choose(topology: Topology, shards: Sequence[ShardId] | None, *, write: bool) -> Places:
    """Find the shards' owners, or with None the nodes; raises as `plan` does."""
    fleet = placing.look(topology, purpose=lock.purpose(COMMAND))
    if write:
        fleet.require_settled()
    found = (
        placing.of_nodes(fleet, ours=write) if shards is None else placing.of_shards(fleet, shards)
    )
    if write and found.left_out:
        raise together(list(dict.fromkeys(error for _, error in found.left_out)))
    return found
