"""All moves of a cluster, read from every node's journal, and the choice of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Misused, together
from shardctl.state import cluster, identity, observer
from shardctl.state import ledger as ledgers

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy, Entry
    from shardctl.topology.model import Node, NodeName, Topology

    Unread = tuple[NodeName, str]


FULL = (
    "it cannot start because the WAL of a move has filled its disk, see docs/operations/failures.md"
)
"""What to do with a source that is not there, behind `if`."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The moves in all journals, newest first; `unread` are nodes that could not be asked."""

    entries: tuple[Entry, ...]
    unread: tuple[Unread, ...]

    def entry(self, move: str | None) -> Entry:
        """Return one move; None means the unfinished one, before those that a command runs.

        Raises move_not_found, nothing_unfinished, several_unfinished.
        """
        if move is None:
            found = [entry for entry in self.entries if entry.state == "unfinished"]
            found = found or [entry for entry in self.entries if entry.open]
            if not found:
                but, hint = self._unread("run `shardctl moves list` to see all moves")
                raise Misused("nothing_unfinished", f"no move is unfinished{but}", hint=hint)
            if len(found) > 1:
                moves = [one.move for one in found]
                listed = ", ".join(f"{one.id} ({one.source} to {one.target})" for one in moves)
                raise Misused(
                    "several_unfinished",
                    f"{len(found)} moves are unfinished: {listed}",
                    hint="give the id of one of them",
                )
            return found[0]
        for entry in self.entries:
            if entry.move.id == move:
                return entry
        known = ", ".join(entry.move.id for entry in self.entries) or "none"
        but, hint = self._unread(f"known moves: {known}")
        raise Misused("move_not_found", f"unknown move {move!r}{but}", hint=hint)

    def _unread(self, hint: str) -> tuple[str, str]:
        """Give what to add to a refusal, and its hint: a journal not read may have the move."""
        if not self.unread:
            return "", hint
        node, reason = self.unread[0]
        but = f" (not checked: nodes {', '.join(node for node, _ in self.unread)})"
        return but, f"node {node}: {reason}; start it, then try again; if {FULL}"

    def newest(self) -> Entry:
        """Return the move that began last; raises no_move_yet."""
        if not self.entries:
            raise Misused(
                "no_move_yet",
                "no move has started yet",
                hint="run `shardctl move-shards` to start one (see its --help)",
            )
        return self.entries[0]


def read(topology: Topology, *, purpose: str) -> Ledger:
    """Read the journals of all reachable nodes.

    Raises NodeUnavailable if none is, and node_unfit if all that are belong to another cluster.
    """

    def copies(session: Connection, node: Node) -> tuple[Copy, ...]:
        row = cluster.read(session) if cluster.is_present(session) else None
        if row is not None and row.cluster != topology.cluster:
            identity.check(row, topology, node.name)
        return ledgers.copies(session, topology, node.name, row, whole=True)

    asked = observer.ask(topology, copies, purpose=purpose)
    if asked.problems and not asked.values:
        raise together(asked.problems)
    known = (copy for of_node in asked.values.values() for copy in of_node)
    return Ledger(ledgers.entries(known), tuple(asked.unread.items()))
