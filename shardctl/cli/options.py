"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


def command_app(**attributes: Any) -> typer.Typer:
    """Make the typer application of one command; only the program itself offers completion."""
    return typer.Typer(add_completion=False, rich_markup_mode="markdown", **attributes)


class Report(StrEnum):
    """Formats of a command that reports."""

    table = "table"
    json = "json"


class Listing(StrEnum):
    """Formats of a command whose answer is a list."""

    table = "table"
    json = "json"
    tsv = "tsv"


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
    str | None,
    typer.Option("--max-wal", metavar="SIZE", help="The most WAL that the source keeps for it."),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, max=64, metavar="N", help="Sessions a node.")
]
LockTimeoutOption = Annotated[
    int,
    typer.Option("--lock-timeout", min=1, metavar="MS", help="How long to wait for a lock, in ms."),
]
AttemptsOption = Annotated[
    int,
    typer.Option("--attempts", min=1, metavar="N", help="How often to try for a chunk's locks."),
]
