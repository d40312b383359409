"""The source's shards: their sizes, locks and room for these, and transactions that last.

And their copy: its rate, its room on the target, and that on the source for the WAL that it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.checks.status import QUERIES as STATUS
from shardctl.meter import listed
from shardctl.moves import plan as planning
from shardctl.moves import wal
from shardctl.moves.plan import PreflightRefused, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import poolers, server, table
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.wal import Wal
    from shardctl.topology.model import NodeName

_SHARE = 3 / 4
"""The part of the lock table that one transaction may take; applications need the rest."""


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


@dataclass(frozen=True, slots=True)
class Shards:
    """Sizes and number of tables of the source's shards."""

    sizes: Mapping[str, int | None]
    """Bytes of live and retired schemas; None where a lock prevents the measurement."""
    moved: int = 0
    """How many tables move."""
    copied: int = 0
    """How many are copied: these, or all of the database with a clone."""


def look(context: Context) -> Shards:
    """Measure the source's schemas, and count the tables that move and that are copied."""
    moved = copied = len(fence.oids(context.session, context.plan.schemas))
    owned = [context.topology.schema(shard) for shard in context.source.shards]
    if not context.streams:
        (copied,) = queries.one(context.session, QUERIES["all_tables"])
    found = context.session.execute(STATUS["schemas"], {"schemas": owned})
    return Shards({name: size for name, size, _ in found}, moved, copied)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse moved shards with a table that another session has locked."""
    sizes = context.need(look).sizes
    if locked := [s for s in context.plan.schemas if s in sizes and sizes[s] is None]:
        yield SourceUnfit(
            context.plan.source,
            "locked",
            f"another session holds an AccessExclusiveLock on tables in {listed(locked)}",
            hint="find it in pg_locks there, wait until it ends or end it, then try again",
        )


def reclaimed(context: Context) -> int:
    """Sum up the bytes that prune frees: moved shards on the source, all others on a clone."""
    staying = () if context.streams else planning.leaving(context.topology, context.plan)
    owned = [*context.plan.schemas, *staying]
    return sum(context.need(look).sizes.get(schema) or 0 for schema in owned)


def look_for_transactions(context: Context) -> list[tuple[int, str, bool]]:
    """List the source's transactions that are older than --max-pause.

    Each with its session's pid, in words, and whether it holds or awaits a write lock on a moved
    table.
    """
    older = {"schemas": list(context.plan.schemas), "seconds": context.plan.options.max_pause_s}
    return context.session.execute(QUERIES["transactions"], older).fetchall()


def judge_transactions(context: Context) -> Iterator[SourceUnfit]:
    """Refuse transactions that the cutover would wait for."""
    busy = {pid for one in context.of(poolers.look) or () for pid in one.busy}
    older = context.need(look_for_transactions)
    if found := [said for pid, said, writes in older if writes or pid in busy]:
        pause_s = context.plan.options.max_pause_s
        yield SourceUnfit(
            context.plan.source,
            "old_transactions",
            f"transactions on the moved shards are older than --max-pause ({pause_s:g} s), so the "
            f"cutover would time out: {listed(found)}",
            hint="wait until they end, or end them with pg_terminate_backend(PID) there",
        )


def judge_locks(context: Context) -> Iterator[PreflightRefused]:
    """Refuse a source whose lock table has no room for the fence."""
    # The fence of a clone only renames.
    locks = len(context.plan.schemas) + (context.need(look).moved if context.streams else 0)
    settings = context.need(server.look).settings
    yield from lock_table(context.plan.source, settings, locks, "the fence")


def judge_standby(context: Context) -> Iterator[PreflightRefused]:
    """Refuse settings with which the clone would not start or could not claim the shards."""
    node, there = context.target, context.need(server.look)
    given = {name.lower(): value for name, value in node.settings.items()}
    wanted: dict[str, str] = {}
    for name in server.STANDBY_CRITICAL:
        wanted[name] = given.get(name, there.settings[name])
        if not wanted[name].isdecimal() or int(wanted[name]) < there.number(name):
            yield TargetUnfit(
                node.name,
                "settings",
                f"settings: {name} is {wanted[name]}, but the source has {there.settings[name]}: "
                "a standby with less does not start",
                hint=f"set it to {there.settings[name]} or more, or remove it: the clone then has "
                "the source's value",
            )
            wanted[name] = there.settings[name]
    renamed = len(context.plan.schemas) + len(planning.leaving(context.topology, context.plan))
    yield from lock_table(node.name, wanted, renamed, "the claim")


def lock_table(
    node: NodeName, settings: Mapping[str, str], locks: int, what: str
) -> Iterator[PreflightRefused]:
    """Refuse a server whose lock table has no room for a transaction with so many locks."""
    sessions = int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    room = int(int(settings["max_locks_per_transaction"]) * sessions * _SHARE)
    if locks > room:
        yield PreflightRefused(
            f"node {node}",
            "lock_table",
            f"{what} takes {locks:,} locks in one transaction, but its lock table has room "
            f"for {room:,} beside those of applications",
            hint=f"set max_locks_per_transaction = {-(-int(locks / _SHARE) // sessions) + 1} "
            "or more there, then restart it",
        )


def look_at_wal(context: Context) -> Wal:
    """Look at the source and its host; raises Unknown for a standby, and without the rights."""
    if context.need(server.look).in_recovery or context.need(table.RIGHTS.look):
        raise Unknown
    return wal.look(context.source, context.session)


def judge_wal(context: Context) -> Iterator[PreflightRefused | str]:
    """Refuse an invalid rate, or a source without room for the WAL that it may keep; report it."""
    rate = context.plan.options.max_rate
    if rate is not None and rate not in _RATES:
        yield PreflightRefused(
            "--max-rate",
            "max_rate",
            f"invalid rate: {rate:,} bytes a second",
            hint="give a rate a second from 32k to 1024M, for example --max-rate 50M",
        )
    yield from wal.judge(context.plan, context.need(look_at_wal))
    yield from wal.notes(context.plan, context.need(look_at_wal))


def predicted_s(context: Context) -> float:
    """Estimate how long the copy takes where it is alone on its machines.

    Other work makes it several times as long.
    """
    each = STREAMED_TABLE_S if context.streams else CLONED_TABLE_S
    tables = 0 if context.plan.reverses is not None else context.need(look).copied
    return copied_bytes(context) / (context.plan.options.max_rate or COPY_RATE) + tables * each


def copied_bytes(context: Context) -> int:
    """Count the bytes that are copied: the source's server, 0 if unknown, or a stream's shards.

    A reverse copies none.
    """
    if context.plan.reverses is not None:
        return 0
    if not context.streams:
        return context.need(server.look).bytes or 0
    sizes = context.need(look).sizes
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
