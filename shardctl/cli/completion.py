"""Shell completion of names from the topology and the databases.

On any error the shell offers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardctl.cli.context import topology_file

if TYPE_CHECKING:
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

_WITHIN_S = 1.0
"""How long to wait for databases: the operator waits at the prompt."""

Offered = list[tuple[str, str]]
"""Values to offer, each with an explanation."""


def nodes(ctx: typer.Context) -> Offered:
    """Offer the nodes of the topology."""
    topology = _topology(ctx)
    return [(name, f"node on {n.host}") for name, n in topology.nodes.items()] if topology else []


def poolers(ctx: typer.Context) -> Offered:
    """Offer the poolers of the topology."""
    topology = _topology(ctx)
    return [(p.name, f"pooler on {p.host}") for p in topology.poolers.values()] if topology else []


def servers(ctx: typer.Context) -> Offered:
    """Offer the values of `run --on`."""
    all_of = [("nodes", "every node"), ("poolers", "every pooler")]
    return [*all_of, *nodes(ctx), *poolers(ctx)]


def checks() -> Offered:
    """Offer the checks of `verify`."""
    from shardctl.checks.registry import CHECKS

    return [(check.name, check.about) for check in CHECKS.values()]


def methods() -> Offered:
    """Offer the methods of a move."""
    from shardctl.moves.methods import METHODS

    return [(str(method), "") for method in METHODS]


def moves(ctx: typer.Context) -> Offered:
    """Offer the moves that the command can act on."""
    verb = ctx.info_name or ""
    return [
        (entry.move.id, f"{entry.state}, from {entry.move.source} to {entry.move.target}")
        for entry in _journal(ctx)
        if verb == "show" or verb in entry.can()
    ]


def _topology(ctx: typer.Context) -> Topology | None:
    from shardctl.errors import ShardctlError
    from shardctl.topology import loader

    try:
        return loader.load_trusted(topology_file(ctx))
    except ShardctlError:
        return None


def _journal(ctx: typer.Context) -> tuple[Entry, ...]:
    """Read the moves from the databases, if they answer in time."""
    topology = _topology(ctx)
    if topology is None:
        return ()
    import queue
    import threading

    from shardctl.errors import ShardctlError
    from shardctl.moves import service

    answers: queue.SimpleQueue[tuple[Entry, ...]] = queue.SimpleQueue()

    def read() -> None:
        try:
            answers.put(tuple(service.read(topology).entries))
        except ShardctlError:
            answers.put(())

    # A login cannot be cancelled before libpq times out: the thread ends with the process.
    threading.Thread(target=read, daemon=True).start()
    try:
        return answers.get(timeout=_WITHIN_S)
    except queue.Empty:
        return ()
