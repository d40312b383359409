"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from shardctl.cli import values


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


ReportOption = Annotated[Report, typer.Option("-o", "--output", help="How to print the result.")]
ListingOption = Annotated[Listing, typer.Option("-o", "--output", help="How to print the result.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Read and check everything, show the plan, change nothing."),
]
AllOrNothingOption = Annotated[
    bool,
    typer.Option("--all-or-nothing", help="Change nothing, exit 1, where a node cannot be read."),
]
MaxWalOption = Annotated[
    int | None,
    typer.Option(
        "--max-wal",
        metavar="SIZE",
        parser=values.size(),
        help="The most WAL that the source keeps for it.",
    ),
]
LockWaitOption = Annotated[
    values.Duration | None,
    typer.Option(
        "--lock-wait",
        metavar="DURATION",
        parser=values.duration(),
        help="Wait so long until no other command changes the fleet, such as 10m.",
    ),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, max=64, metavar="N", help="Sessions a node.")
]
LOCK_TIMEOUT = values.Duration(seconds=2)
LockTimeoutOption = Annotated[
    values.Duration,
    typer.Option(
        "--lock-timeout",
        metavar="DURATION",
        parser=values.duration(plain="ms", least=values.Duration(milliseconds=1)),
        help="How long to wait for a table's lock; a plain number is in ms.",
    ),
]
AttemptsOption = Annotated[
    int,
    typer.Option("--attempts", min=1, metavar="N", help="How often to try for a chunk's locks."),
]
