"""All moves of a cluster, read from every node's journal, and which of them is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, UsageError, together
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster
from shardctl.state import ledger as ledgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.state.ledger import Copy, Entry
    from shardctl.topology.model import Node, NodeName, Topology

    Unread = tuple[NodeName, str]

_WIDTH = 16


class MoveNotFound(UsageError):
    """An id that no node's journal has."""

    def __init__(self, move: str, known: Sequence[str], unread: Sequence[Unread] = ()) -> None:
        hint = f"its journal has: {', '.join(known)}" if known else "there was no move yet"
        super().__init__(f"no node knows a move {move}" + _but(unread), hint=_full(unread) or hint)


def _but(unread: Sequence[Unread]) -> str:
    names = ", ".join(node for node, _ in unread)
    return f" on the nodes that answer (without: {names})" if unread else ""


def _full(unread: Sequence[Unread]) -> str | None:
    """Say what helps where a node cannot be asked for a move, which may be why."""
    if not unread:
        return None
    node, reason = unread[0]
    return (
        f"node {node}: {reason}; start it, or let `shardctl init` make tables that are missing, "
        "and try again; if it cannot start because the WAL of a move has filled its disk: "
        f"`shardctl moves abort MOVE --restart-source {node}`"
    )


class NoMoveYet(UsageError):
    """A cluster in whose journal there is nothing to show."""

    def __init__(self) -> None:
        super().__init__(
            "there was no move yet", hint="`shardctl move-shards` begins one (see its --help)"
        )


class NothingUnfinished(UsageError):
    """No move that could be resumed or aborted, as far as nodes could be asked."""

    def __init__(self, unread: Sequence[Unread] = ()) -> None:
        hint = "`shardctl moves list` shows them all"
        super().__init__("no move is unfinished" + _but(unread), hint=_full(unread) or hint)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the journals say, newest first; `unread` are nodes that could not be asked."""

    entries: tuple[Entry, ...]
    unread: tuple[Unread, ...]

    def entry(self, move: str | None) -> Entry:
        """Give one move; None stands for the one that is unfinished.

        Raises MoveNotFound, NothingUnfinished.
        """
        if move is None:
            found = next((entry for entry in self.entries if entry.open), None)
            if found is None:
                raise NothingUnfinished(self.unread)
            return found
        for entry in self.entries:
            if entry.move.id == move:
                return entry
        known = [entry.move.id for entry in self.entries]
        raise MoveNotFound(move, known, self.unread)

    def newest(self) -> Entry:
        """Give the move that began last; raises NoMoveYet."""
        if not self.entries:
            raise NoMoveYet
        return self.entries[0]


def read(topology: Topology, *, purpose: str) -> Ledger:
    """Read the journals of all nodes that are there; raises NodeUnavailable when none is."""
    copies: list[Copy] = []
    unread: list[Unread] = []
    answered = False
    outcomes = fanout.run(
        topology.nodes.values(), lambda node: _read(topology, node, purpose), width=_WIDTH
    )
    for outcome in outcomes:
        node, error = outcome.item, outcome.error
        if error is None:
            answered = True
            copies += outcome.result()
        elif isinstance(error, NodeUnavailable) and not node.shards:
            continue  # it waits to be cloned onto
        elif isinstance(error, NodeUnavailable):
            unread.append((node.name, error.reason))
        elif isinstance(error, psycopg.Error):
            unread.append((node.name, reason_of(error)))
        elif isinstance(error, ShardctlError):
            unread.append((node.name, error.message))
        else:
            raise error
    if unread and not answered:
        addresses = {n.name: f"{n.host}:{n.port}" for n in topology.nodes.values()}
        raise together([NodeUnavailable(n, addresses[n], reason) for n, reason in unread])
    return Ledger(ledgers.entries(copies), tuple(unread))


def _read(topology: Topology, node: Node, purpose: str) -> tuple[Copy, ...]:
    with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
        row = cluster.read(session) if cluster.is_present(session) else None
        return ledgers.copies(session, topology, node.name, row, whole=True)
