"""Logical decoding on the source: whether it can hold a slot for a stream and send from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves import standbys
from shardctl.moves.preflight import replication, server, wal
from shardctl.moves.preflight.subject import STREAM, Unknown
from shardctl.moves.refusals import PreflightRefused, SourceUnfit
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

OLDEST = 15
"""The first major version whose publications can be filtered by rows."""

BROKEN = {150_013: "15.14", 160_009: "16.10", 170_005: "17.6"}
"""Versions whose decoding needs ever more memory where DDL runs beside open transactions, and then
fails ("invalid memory alloc request size"), and the releases that correct it."""

_COPIES = 3
"""A slot is not used while the copy is made, and then the indexes."""


def require_streams(context: Context) -> None:
    """See that the source's catalogs are those of a version that streams; raises Unknown."""
    if context.need(server.look).major < OLDEST:
        raise Unknown


def look(context: Context) -> int:
    """Ask the source after how many seconds it drops an unused slot; 0: it does not."""
    (seconds,) = queries.one(context.session, STREAM["timeout"])
    return int(seconds)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a source that cannot decode its WAL, or not for one stream more."""
    node, there = context.plan.source, context.need(server.look)
    if there.major < OLDEST:
        yield SourceUnfit(
            node,
            "too_old",
            f"PostgreSQL {there.version} cannot filter what it publishes",
            hint=f"use --method clone: a streamed move needs PostgreSQL {OLDEST} or newer",
        )
    if there.version_number in BROKEN:
        yield SourceUnfit(
            node,
            "decoding_broken",
            f"logical decoding of PostgreSQL {there.version} is known to run out of memory",
            hint=f"install {BROKEN[there.version_number]} or newer there, and restart it",
        )
    if (level := there.settings["wal_level"]) != "logical":
        yield SourceUnfit(
            node,
            "wal_level",
            f"wal_level = {level}, and logical replication needs logical",
            hint="run ALTER SYSTEM SET wal_level = logical there and restart the server, or use "
            "--method clone",
        )
    # The slot of a reverse is there already.
    yield from replication.full(context, slots=1 if context.plan.reverses is None else 0)


def judge_timeout(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a source that would drop the slot while the copy is made."""
    seconds = context.need(look)
    try:
        copy_s = wal.predicted_s(context)
    except PreflightRefused as error:  # the rate is none, which is refused elsewhere
        raise Unknown from error
    if 0 < seconds < _COPIES * copy_s:
        yield SourceUnfit(
            context.plan.source,
            "slot_timeout",
            f"idle_replication_slot_timeout ({seconds} s) could drop the slot while the move "
            f"copies rows (about {copy_s:.0f} s) and builds indexes",
            hint="run ALTER SYSTEM SET idle_replication_slot_timeout = 0 there and reload the "
            "server; set it back when the move is over",
        )


def look_for_standbys(context: Context) -> tuple[str, ...]:
    """Name the standbys that are not connected, so that the cutover would time out."""
    return tuple(sorted(standbys.away(context.session)))


def notes_on_standbys(context: Context) -> Iterator[str]:
    """Say which standbys have to come back before the cutover."""
    away = context.need(look_for_standbys)
    if away and not context.plan.options.ignore_standby:
        yield (
            f"node {context.plan.source} has standbys that are not connected: {listed(away)}; the "
            "cutover does not begin without them: start them, drop the slots of those that are "
            "gone, or give --ignore-standby"
        )


def notes(context: Context) -> Iterator[str]:
    """Say when the source drops a slot by itself."""
    if seconds := context.need(look):
        yield (
            f"node {context.plan.source} drops a slot that is unused for {seconds} s "
            "(idle_replication_slot_timeout): a move that stops for longer copies all rows again"
        )
