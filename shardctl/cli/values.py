"""Durations and sizes on the command line, in the syntax of topology.yaml."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import typer

from shardctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST = 1000
Number = TypeVar("Number", int, float)


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


def duration(
    *, plain: str | None = None, least: Duration | None = None
) -> Callable[[object], Duration]:
    """Return the parser of an option; `plain` is the unit of a number without one, 0 needs none.

    The parser raises typer.BadParameter.
    """

    def parse(value: object) -> Duration:
        if isinstance(value, Duration):  # the option's default
            return value
        from shardctl.topology import fields

        try:
            given = fields.duration("0s" if value == "0" else value, plain=plain)
            found = Duration(milliseconds=fields.milliseconds(given))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if least is not None and found < least:
            raise typer.BadParameter(f"{value!r} is less than {least}")
        return found

    return parse


def moment() -> Callable[[object], datetime]:
    """Return the parser of an option for a time: a duration ago, or ISO 8601 (UTC without a zone).

    The parser raises typer.BadParameter.
    """

    def parse(value: object) -> datetime:
        from shardctl.ids import times
        from shardctl.topology import fields

        text = str(value).strip()
        try:
            if re.fullmatch(fields.DURATION_PATTERN, text):
                return datetime.now(UTC) - fields.duration(text)
            return datetime.fromtimestamp(times.parse(text) / 1000, UTC)
        except (ValueError, OverflowError) as error:
            raise typer.BadParameter(
                f"{text!r} is not a duration such as 1h or a time such as 2026-11-21T10:00"
            ) from error

    return parse


def size(*, plain: str | None = None) -> Callable[[object], int]:
    """Return the parser of an option for bytes; `plain` is the unit of a number without one.

    The parser raises typer.BadParameter.
    """

    def parse(value: object) -> int:
        from shardctl.topology import fields

        try:
            return fields.size(value, plain=plain)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


def percent(value: object) -> float:
    """Parse a part of something, such as 10%; raises typer.BadParameter.

    >>> percent("10%"), percent("2.5%"), percent(0.1)
    (0.1, 0.025, 0.1)
    """
    if isinstance(value, float):  # the option's default
        return value
    text = str(value)
    try:
        found = float(text.removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not text.endswith("%") or not 0.001 <= found <= 10:
        raise typer.BadParameter(f"{text!r} is not a percentage from 0.1% to 1000%, such as 10%")
    return found


def of_nodes(
    given: Sequence[str], option: str, parse: Callable[[str], Number]
) -> dict[str, Number]:
    """Parse values of an option such as `a=2`, which may be given for several nodes.

    Raises UsageError.
    """
    found: dict[str, Number] = {}
    for text in given:
        node, separator, value = text.partition("=")
        try:
            if not (node and separator):
                raise ValueError("it has no NODE=VALUE")  # noqa: TRY301  # as what parse raises
            if node in found:
                raise ValueError(f"node {node} has another value already")  # noqa: TRY301
            found[node] = parse(value)
        except ValueError as error:
            raise UsageError(
                f"invalid value {text!r} for {option}: {error}", hint=f"write {option} a=2"
            ) from error
    return found


def weight(text: str) -> float:
    """Parse the weight of a node; raises ValueError.

    >>> weight("2"), weight("0.5"), weight("0")
    (2.0, 0.5, 0.0)
    """
    found = float(text)
    if not 0 <= found <= _MOST:
        raise ValueError(f"{text} is not a weight from 0 to {_MOST}")
    return found
