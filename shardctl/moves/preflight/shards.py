"""The shards of the source: their sizes, locks and room for these, and transactions that last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl.access import fence
from shardctl.checks.status_look import QUERIES as STATUS
from shardctl.meter import listed
from shardctl.moves import plan as planning
from shardctl.moves.plan import PreflightRefused, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import poolers, server
from shardctl.moves.preflight.server import keep_out
from shardctl.moves.preflight.subject import QUERIES, refused
from shardctl.postgres import queries
from shardctl.postgres.connection import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId, Topology

_SHARE = 3 / 4
"""The part of the lock table that one transaction may take; applications need the rest."""


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
    return Shards(_sizes(context.session, owned), moved, copied)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse moved shards with a table that another session has locked."""
    sizes = context.need(look).sizes
    if locked := [s for s in context.plan.schemas if s in sizes and sizes[s] is None]:
        yield _locked(context.plan.source, locked)


def reclaimed(context: Context) -> int:
    """Sum up the bytes that prune frees: moved shards on the source, all others on a clone."""
    staying = () if context.streams else planning.leaving(context.topology, context.plan)
    owned = [*context.plan.schemas, *staying]
    return sum(context.need(look).sizes.get(schema) or 0 for schema in owned)


def measure(topology: Topology, node: NodeName, *, purpose: str) -> dict[ShardId, int]:
    """Measure a node's shards in bytes, for `--half`.

    Raises NodeUnavailable and PreflightRefused.
    """
    there = topology.nodes[node]
    names = {topology.schema(shard): shard for shard in there.shards}
    try:
        with connect(
            there, topology.database, purpose=purpose, autocommit=True, observing=True
        ) as session:
            keep_out(session, seconds=1)
            found = _sizes(session, list(names))
    except psycopg.Error as error:
        raise refused(there, topology.database.user, error) from error
    unknown = [name for name in names if name in found and found[name] is None]
    if unknown:
        raise _locked(node, unknown)
    return {shard: size for name, shard in names.items() if (size := found.get(name)) is not None}


def _sizes(session: Connection, owned: Sequence[str]) -> dict[str, int | None]:
    found = session.execute(STATUS["schemas"], {"schemas": list(owned)})
    return {name: size for name, size, _ in found}


def _locked(node: NodeName, locked: Sequence[str]) -> SourceUnfit:
    return SourceUnfit(
        node,
        "locked",
        f"another session holds an AccessExclusiveLock on tables in {listed(locked)}",
        hint="find it in pg_locks there, wait until it ends or end it, then try again",
    )


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
