"""The copy: its rate, its room on the target, and that on the source for the WAL that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import wal
from shardctl.moves.plan import PreflightRefused, TargetUnfit
from shardctl.moves.preflight import server, shards, table
from shardctl.moves.preflight.subject import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.wal import Wal

COPY_RATE = 200 * 1024 * 1024
"""The assumed rate of a copy without `--max-rate`, in bytes a second."""
STREAMED_TABLE_S = 0.011
"""For each table that is streamed: pg_dump, COPY, pg_restore, its indexes, ANALYZE.

Measured as prediction.COMPARED_TABLE_S.
"""
CLONED_TABLE_S = 0.005
"""For each table that is cloned: its files, and their flush at the end. Measured as above."""

_SPARE = 10
_RATES = range(32 * 1024, 1024 * 1024 * 1024 + 1)
"""The rates that pg_basebackup accepts, in bytes a second."""


def look(context: Context) -> Wal:
    """Look at the source and its host; raises Unknown for a standby, and without the rights."""
    if context.need(server.look).in_recovery or context.need(table.RIGHTS.look):
        raise Unknown
    return wal.look(context.source, context.session)


def judge(context: Context) -> Iterator[PreflightRefused | str]:
    """Refuse an invalid rate, or a source without room for the WAL that it may keep; report it."""
    rate = context.plan.options.max_rate
    if rate is not None and rate not in _RATES:
        yield PreflightRefused(
            "--max-rate",
            "max_rate",
            f"invalid rate: {rate:,} bytes a second",
            hint="give a rate a second from 32k to 1024M, for example --max-rate 50M",
        )
    yield from wal.judge(context.plan, context.need(look))
    yield from wal.notes(context.plan, context.need(look))


def predicted_s(context: Context) -> float:
    """Estimate how long the copy takes where it is alone on its machines.

    Other work makes it several times as long.
    """
    each = STREAMED_TABLE_S if context.streams else CLONED_TABLE_S
    tables = 0 if context.plan.reverses is not None else context.need(shards.look).copied
    return copied_bytes(context) / (context.plan.options.max_rate or COPY_RATE) + tables * each


def copied_bytes(context: Context) -> int:
    """Count the bytes that are copied: the source's server, 0 if unknown, or a stream's shards.

    A reverse copies none.
    """
    if context.plan.reverses is not None:
        return 0
    if not context.streams:
        return context.need(server.look).bytes or 0
    sizes = context.need(shards.look).sizes
    return sum(sizes.get(schema) or 0 for schema in context.plan.schemas)


def judge_target(
    context: Context, where: str, free: int | None, there: Server
) -> Iterator[TargetUnfit]:
    """Refuse a disk without room for what is copied, a tenth of that, and the WAL that is kept."""
    copied, kept = copied_bytes(context), there.number("max_wal_size") * wal.MB
    needed = copied + copied // _SPARE + kept
    if free is not None and free < needed:
        yield TargetUnfit(
            context.plan.target,
            "disk",
            f"{where} has {wal.megabytes(free)} free, but the copy needs {wal.megabytes(needed)}: "
            f"{wal.megabytes(copied)}, a tenth of that, and max_wal_size = {wal.megabytes(kept)}",
            hint="free space there, or choose another target or data_directory",
        )
