"""Room on the disk of a target that serves already, for the moved shards and the WAL of a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import wal as room
from shardctl.moves.preflight import member
from shardctl.moves.preflight import wal as copy
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_SHARE = 0.1
_MB = 1024 * 1024


def look(context: Context) -> int | None:
    """Measure the free bytes of the target's disk; None where its host cannot be asked."""
    directory = context.need(member.look).settings.get("data_directory")
    free, _ = room.free_bytes(context.target, directory, inside="base/.")
    return free


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a disk without room for the shards, a tenth of that, and the WAL that is kept."""
    free, bytes_ = context.need(look), copy.copied_bytes(context)
    kept = context.need(member.look).number("max_wal_size")
    needed = int(bytes_ * (1 + _SHARE)) + kept * _MB
    if free is not None and free < needed:
        yield TargetUnfit(
            context.plan.target,
            "disk",
            f"its disk has {free / _MB:,.0f} MB free, and the copy needs {needed / _MB:,.0f} MB: "
            f"the shards' {bytes_ / _MB:,.0f} MB, a tenth of that, and max_wal_size = {kept} MB",
            hint="make room there, move fewer shards, or choose another target",
        )


def notes(context: Context) -> Iterator[str]:
    """Say that the room was not measured."""
    if context.need(look) is None:
        yield (
            f"how much room the disk of node {context.plan.target} has was not measured: the copy "
            f"needs {copy.copied_bytes(context) / _MB:,.0f} MB and more"
        )
