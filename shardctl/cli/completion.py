"""Shell completion of names from the topology.

On any error the shell offers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardctl.cli.context import topology_file

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

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
    from shardctl.checks.verify import CHECKS

    return [(check.name, check.about) for check in CHECKS.values()]


def methods() -> Offered:
    """Offer the methods of a move."""
    from shardctl.moves.methods import METHODS

    return [(str(method), "") for method in METHODS]


def _topology(ctx: typer.Context) -> Topology | None:
    from shardctl.errors import ShardctlError
    from shardctl.topology import loader

    try:
        return loader.load_trusted(topology_file(ctx))
    except ShardctlError:
        return None
