"""Settings of a run, the topology that they name, and options that several commands share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Sequence


DEFAULT_TOPOLOGY = Path("topology.yaml")


@dataclass(slots=True)
class Settings:
    """The options that may come before and after the command; one object per run.

    `topology` is None if neither option nor environment names one.
    """

    topology: Path | None = None
    verbose: bool = False
    output: str | None = None
    """The format of the result; None before the command's own options are read."""
    detailed: bool = False
    """Whether the exit code of a dry run shows pending changes."""
    dry_run: bool = False
    yes: bool = False
    lock_wait: timedelta | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """The values of options that the command shares with others, by their names."""
    changes: bool = False
    """Whether the command changes the fleet after a question, and is not a dry run."""
    pending: bool = False
    """Whether the command found something to change."""
    nagios: bool = False
    """Whether the exit code and the first line are those of a monitoring plugin."""

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.output == "json"

    def guess(self, words: Sequence[str]) -> None:
        """Read the options that affect errors from a command line that could not be parsed."""
        self.detailed = "--detailed-exitcode" in words
        self.nagios = "--nagios" in words
        if {"-ojson", "--output=json", "json"} & {*words}:
            self.output = "json"

    def exit_code(self, code: int) -> int:
        """Return the exit code of the process; `code` is that of the command."""
        if not self.detailed:
            return code
        return 1 if code else 2 if self.pending else 0


def topology_file(ctx: typer.Context) -> Path:
    """Return the file that `--topology`, `$SHARDCTL_TOPOLOGY` or the default names."""
    settings: Settings = ctx.obj
    return settings.topology or DEFAULT_TOPOLOGY


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

    A number needs its unit, but for 0. Typer reports the ValueError that the parser raises.
    """

    def parse(value: object) -> Duration:
        if isinstance(value, Duration):  # the option's default
            return value
        from shardctl.topology import fields

        given = fields.duration("0s" if value == "0" else value)
        found = Duration(milliseconds=fields.milliseconds(given))
        if least is not None and found < least:
            raise ValueError(f"{value!r} is less than {least}")
        return found

    return typer.Option(metavar="<duration>", parser=parse, help=text)


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
    return typer.Option(metavar="<size>", parser=size, help=text)


def size(value: object) -> int:
    """Parse the value of an option for bytes; raises ValueError."""
    from shardctl.topology import fields

    return fields.size(value)


def node_names(ctx: typer.Context) -> list[str]:
    """Offer the nodes of the topology."""
    return _names(ctx, "nodes")


def pooler_names(ctx: typer.Context) -> list[str]:
    """Offer the poolers of the topology."""
    return _names(ctx, "poolers")


def server_names(ctx: typer.Context) -> list[str]:
    """Offer the values of `run --on`."""
    return ["nodes", "poolers", *_names(ctx, "nodes", "poolers")]


def check_names() -> list[str]:
    """Offer the checks of `verify`."""
    from shardctl.checks.verify import CHECKS

    return [*CHECKS]


def _names(ctx: typer.Context, *kinds: str) -> list[str]:
    """Give names of the topology, if it can be read."""
    from shardctl.topology import loader

    try:
        topology = loader.load_trusted(topology_file(ctx))
    except ShardctlError:
        return []
    return [str(name) for kind in kinds for name in getattr(topology, kind)]


Report = Literal["table", "json"]
"""Formats of a command that reports."""
Listing = Literal["table", "json", "tsv", "csv"]
"""Formats of a command whose answer is a list."""

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
