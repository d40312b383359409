"""Options that several commands share, and names of the topology for shell completion."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import values
from shardctl.cli.context import topology_file

if TYPE_CHECKING:
    from shardctl.topology.model import Topology


Offered = list[tuple[str, str]]
"""Values to offer, each with an explanation."""


def node_names(ctx: typer.Context) -> Offered:
    """Offer the nodes of the topology."""
    topology = _topology_there(ctx)
    return [(name, f"node on {n.host}") for name, n in topology.nodes.items()] if topology else []


def pooler_names(ctx: typer.Context) -> Offered:
    """Offer the poolers of the topology."""
    topology = _topology_there(ctx)
    return [(p.name, f"pooler on {p.host}") for p in topology.poolers.values()] if topology else []


def server_names(ctx: typer.Context) -> Offered:
    """Offer the values of `run --on`."""
    all_of = [("nodes", "every node"), ("poolers", "every pooler")]
    return [*all_of, *node_names(ctx), *pooler_names(ctx)]


def check_names() -> Offered:
    """Offer the checks of `verify`."""
    from shardctl.checks.verify import CHECKS

    return [(check.name, check.about) for check in CHECKS.values()]


def method_names() -> Offered:
    """Offer the methods of a move."""
    from shardctl.moves.methods import METHODS

    return [(str(method), "") for method in METHODS]


def _topology_there(ctx: typer.Context) -> Topology | None:
    from shardctl.errors import ShardctlError
    from shardctl.topology import loader

    try:
        return loader.load_trusted(topology_file(ctx))
    except ShardctlError:
        return None


class Report(StrEnum):
    """Formats of a command that reports."""

    table = "table"
    json = "json"


class Listing(StrEnum):
    """Formats of a command whose answer is a list."""

    table = "table"
    json = "json"
    tsv = "tsv"
    csv = "csv"


ReportOption = Annotated[Report, typer.Option("-o", "--output", help="Format of the result.")]
ListingOption = Annotated[Listing, typer.Option("-o", "--output", help="Format of the result.")]
AllOrNothingOption = Annotated[
    bool, typer.Option(help="If a node is unreachable, change nothing and exit 1.")
]
DANGEROUS = "Dangerous"
"""The panel of options that end others' work or take the operator's word."""
FinishReverseOption = Annotated[
    bool,
    typer.Option(help="Give up reversing earlier moves of these shards, as `moves finish` does."),
]
LockWaitOption = Annotated[
    values.Duration | None,
    values.duration_option(
        "How long to wait for other commands that change the fleet, for example 10m."
    ),
]
WatchOption = Annotated[
    values.Duration | None,
    values.duration_option(
        "Look again and again, for example every 2s.", least=values.Duration(milliseconds=100)
    ),
]
SampleOption = Annotated[
    values.Duration,
    values.duration_option("How long to count transactions or operations; 0 to skip."),
]
OfNodeOption = Annotated[
    str | None, typer.Option(autocompletion=node_names, help="Only this node.")
]
JobsOption = Annotated[int, typer.Option(min=1, max=64, help="Sessions per node.")]
