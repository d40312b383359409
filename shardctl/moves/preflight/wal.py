"""The copy: its rate, and room on the source for the WAL that is written meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.moves import wal
from shardctl.moves.preflight import rights, server
from shardctl.moves.preflight.subject import Unknown
from shardctl.moves.refusals import PreflightRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.wal import Wal

COPY_RATE = 200 * 1024 * 1024
"""Bytes a second that a copy is taken to make where `--max-rate` does not say."""

_RATE = re.compile(r"(\d+)([kM]?)")
_RATES = range(32 * 1024, 1024 * 1024 * 1024 + 1)
"""What pg_basebackup takes, in bytes a second."""


def look(context: Context) -> Wal:
    """Ask the source and its host; raises Unknown of a standby, and for those who may not know."""
    if context.need(server.look).in_recovery or rights.MONITOR in context.need(rights.look):
        raise Unknown
    return wal.look(context.source, context.session)


def judge(context: Context) -> Iterator[PreflightRefused]:
    """Refuse a rate that is none, or a source without room for the WAL of the copy."""
    try:
        copy_s = predicted_s(context)
    except PreflightRefused as error:
        yield error
    else:
        yield from wal.judge(context.plan, context.need(look), copy_s)


def notes(context: Context) -> Iterator[str]:
    """Say what bounds the WAL that the source keeps."""
    yield from wal.notes(context.plan, context.need(look))


def predicted_s(context: Context) -> float:
    """Estimate how long the copy takes; raises PreflightRefused for a rate that is none."""
    a_second = rate(context.plan.options.max_rate)
    there = context.of(server.look)
    return (there.bytes or 0) / a_second if there is not None else 0.0


def rate(text: str | None) -> int:
    """Read a rate as pg_basebackup takes it, in bytes a second; COPY_RATE for None.

    Raises PreflightRefused.

    >>> rate("100M"), rate("64"), rate(None)
    (104857600, 65536, 209715200)
    """
    if text is None:
        return COPY_RATE
    found = _RATE.fullmatch(text)
    bytes_a_second = int(found[1]) * 1024 ** (2 if found[2] == "M" else 1) if found else 0
    if bytes_a_second not in _RATES:
        raise PreflightRefused(
            "--max-rate",
            "max_rate",
            f"{text!r} is no rate for pg_basebackup",
            hint="give kilobytes a second as in 4096k, or megabytes as in 100M; 32k to 1024M",
        )
    return bytes_a_second
