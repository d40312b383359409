"""Durations and sizes on the command line, in the syntax of topology.yaml."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


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


def duration(*, least: Duration | None = None) -> Callable[[object], Duration]:
    """Return the parser of an option; a number needs its unit, but for 0.

    The parser raises typer.BadParameter.
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

    return parse


def duration_option(text: str, *, least: Duration | None = None) -> Any:
    """Make an option for a duration; `text` is its line in the help."""
    return typer.Option(metavar="DURATION", parser=duration(least=least), help=text)


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


def size(value: object) -> int:
    """Parse the value of an option for bytes; raises typer.BadParameter."""
    from shardctl.topology import fields

    try:
        return fields.size(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
