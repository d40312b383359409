"""All moves of a cluster, read from every node's journal, and the choice of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Misused, together
from shardctl.state import cluster, identity, observer
from shardctl.state import ledger as ledgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy, Entry
    from shardctl.topology.model import Node, NodeName, Topology

    Unread = tuple[NodeName, str]


FULL = (
    "it cannot start because the WAL of a move has filled its disk, see docs/operations/failures.md"
)
"""What to do with a source that is not there, behind `if`."""


def move_not_found(move: str, known: Sequence[str], unread: Sequence[Unread] = ()) -> Misused:
    """Report an id that no node's journal has."""
    hint = f"known moves: {', '.join(known)}" if known else "no move has started yet"
    return Misused(
        "move_not_found", f"unknown move {move!r}" + _but(unread), hint=_full(unread) or hint
    )


def _but(unread: Sequence[Unread]) -> str:
    names = ", ".join(node for node, _ in unread)
    return f" (not checked: nodes {names})" if unread else ""


def _full(unread: Sequence[Unread]) -> str | None:
    """Return the hint for a node that could not be asked, whose journal may have the move."""
    if not unread:
        return None
    node, reason = unread[0]
    return (
        f"node {node}: {reason}; start it, or restore its tables if they are missing, then "
        f"try again; if {FULL}"
    )


def nothing_unfinished(unread: Sequence[Unread] = ()) -> Misused:
    """Report that no move can be resumed or aborted."""
    hint = "run `shardctl moves list` to see all moves"
    return Misused(
        "nothing_unfinished", "no move is unfinished" + _but(unread), hint=_full(unread) or hint
    )


def several_unfinished(found: Sequence[Entry]) -> Misused:
    """Report that a command needs the id of one of several moves."""
    listed = ", ".join(f"{e.move.id} ({e.move.source} to {e.move.target})" for e in found)
    return Misused(
        "several_unfinished",
        f"{len(found)} moves are unfinished: {listed}",
        hint="give the id of one of them",
    )


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
                raise nothing_unfinished(self.unread)
            if len(found) > 1:
                raise several_unfinished(found)
            return found[0]
        for entry in self.entries:
            if entry.move.id == move:
                return entry
        known = [entry.move.id for entry in self.entries]
        raise move_not_found(move, known, self.unread)

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
