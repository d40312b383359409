"""Options that several commands share: durations, sizes, names of the topology for completion."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli.context import topology_file

if TYPE_CHECKING:
    from shardctl.topology.model import Topology


class Duration(timedelta):
    """A duration that prints in the syntax of the command line.

    >>> print(Duration(seconds=90), Duration(days=7), Duration(milliseconds=150), Duration())
    90s 7d 150ms 0s
    """

    @property
    def ms(self) -> int:
        """Its whole milliseconds."""
        return self // timedelta(milliseconds=1)

    def __str__(self) -> str:
        for unit, long in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if not self.ms % long and (self.ms or unit == "s"):
                return f"{self.ms // long}{unit}"
        return f"{self.ms}ms"


MS = Duration(milliseconds=1)
SAMPLE = Duration(seconds=1)
"""How long transactions and operations are counted; a session reports its own once a second."""


def duration_option(text: str, *, least: Duration | None = None) -> Any:
    """Make an option for a duration; `text` is its line in the help.

    A number needs its unit, but for 0. The parser raises typer.BadParameter.
    """

    def parse(value: object) -> Duration:
        if isinstance(value, Duration):  # the option's default
            return value
        from shardctl.topology import fields

        try:
            given = fields.duration("0s" if value == "0" else value)
            found = Duration(milliseconds=fields.milliseconds(given))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if least is not None and found < least:
            raise typer.BadParameter(f"{value!r} is less than {least}")
        return found

    return typer.Option(metavar="DURATION", parser=parse, help=text)


def moment(value: object) -> datetime:
    """Parse the value of an option for a time: so long before now, or as RFC 3339 has it.

    Raises typer.BadParameter.
    """
    from shardctl.ids import times
    from shardctl.topology import fields

    try:
        if re.fullmatch(fields.DURATION_PATTERN, text := str(value)):
            return datetime.now(UTC) - fields.duration(text)
        return datetime.fromtimestamp(times.parse(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(
            f"expected a duration such as 2h or a time such as 2026-01-31T12:00, found {text!r}"
        ) from error


def size_option(text: str) -> Any:
    """Make an option for bytes; `text` is its line in the help."""
    return typer.Option(metavar="SIZE", parser=size, help=text)


def size(value: object) -> int:
    """Parse the value of an option for bytes; raises typer.BadParameter."""
    from shardctl.topology import fields

    try:
        return fields.size(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


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
    from shardctl.moves.service import METHODS

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


def dangerous(text: str) -> Any:
    """Make such an option; `text` is its line in the help."""
    return typer.Option(help=text, rich_help_panel=DANGEROUS)


FinishReverseOption = Annotated[
    bool,
    typer.Option(help="Give up reversing earlier moves of these shards, as `moves finish` does."),
]
LockWaitOption = Annotated[
    Duration | None,
    duration_option("How long to wait for other commands that change the fleet, for example 10m."),
]
WatchOption = Annotated[
    Duration | None,
    duration_option(
        "Look again and again, for example every 2s.", least=Duration(milliseconds=100)
    ),
]
SampleOption = Annotated[
    Duration, duration_option("How long to count transactions or operations; 0 to skip.")
]
OfNodeOption = Annotated[
    str | None, typer.Option(autocompletion=node_names, help="Only this node.")
]
JobsOption = Annotated[int, typer.Option(min=1, max=64, help="Sessions per node.")]
