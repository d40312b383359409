"""Preflight of replication: whether the source can have a clone, and which others it has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.checks import settings as checked
from shardctl.moves.refusals import PreflightRefused, SourceUnfit, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.source import Source
    from shardctl.topology.model import NodeName

STANDBY_CRITICAL = (
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
)
"""A standby does not follow a primary that has more of these."""

_SHARE = 3 / 4
"""Of the lock table that the renames of one transaction may take; the rest is applications'."""
_WORD = re.compile(r'"(?:[^"]|"")*"|[^\s,()"]+')
_LIST = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)


def judge(plan: MovePlan, source: Source, clones: Collection[str]) -> Iterator[SourceUnfit]:
    """Find what keeps the source from being cloned, and standbys that know no fence."""
    yield from _room(plan.source, source)
    yield from standbys(plan, source, clones)


def lock_table(
    node: NodeName, settings: Mapping[str, str], locks: int, what: str
) -> Iterator[PreflightRefused]:
    """See that a transaction which takes so many locks finds room for them.

    `settings` are those of the server where it runs; each renamed schema is locked until the end,
    and where writes are refused each table, too.
    """
    sessions = int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    room = int(int(settings["max_locks_per_transaction"]) * sessions * _SHARE)
    if locks > room:
        yield PreflightRefused(
            f"node {node}",
            "lock_table",
            f"{what} takes {locks} locks in one transaction, and its lock table has room "
            f"for {room} beside the applications'",
            hint=f"set max_locks_per_transaction = {-(-int(locks / _SHARE) // sessions) + 1} "
            "or more there, and restart it",
        )


def synchronous(setting: str) -> list[str]:
    """List the names in `synchronous_standby_names`, in lower case.

    >>> synchronous('ANY 2 (s1, "S 2", *)'), synchronous("first"), synchronous("")
    (['s1', 's 2', '*'], ['first'], [])
    """
    inner = _LIST.fullmatch(setting)
    words = _WORD.findall(inner[1] if inner else setting)
    return [word.removeprefix('"').removesuffix('"').replace('""', '"').lower() for word in words]


def _room(node: NodeName, source: Source) -> Iterator[SourceUnfit]:
    level = source.settings["wal_level"]
    if level == "minimal":  # which forbids senders, too
        yield SourceUnfit(
            node,
            "wal_level",
            "wal_level = minimal: nothing can be cloned from it",
            hint="`ALTER SYSTEM SET wal_level = replica` and a restart",
        )
        return
    for name, used, wanted, code in (
        ("max_wal_senders", source.senders, checked.SENDERS, "wal_senders"),
        ("max_replication_slots", source.slots, 1, "replication_slots"),
    ):
        most = source.number(name)
        if most - used < wanted:
            yield SourceUnfit(
                node,
                code,
                f"{name} = {most}, {used} of them in use; a move needs {wanted} free",
                hint=f"`ALTER SYSTEM SET {name} = {used + wanted}` or more, and a restart",
            )


def standbys(plan: MovePlan, source: Source, clones: Collection[str] = ()) -> Iterator[SourceUnfit]:
    """Find standbys that know no fence, and a setting that would make the clone one of them.

    Those of which repmgr tells whether it may promote them are its matter, and `clones` are
    those of other moves.
    """
    names = synchronous(source.settings.get("synchronous_standby_names", ""))
    ours = {"*", plan.slot, plan.target.lower(), "walreceiver", "pg_basebackup"}
    if matched := [name for name in names if name in ours]:
        yield SourceUnfit(
            plan.source,
            "synchronous_clone",
            f"synchronous_standby_names has {', '.join(matched)}, so commits would wait for the "
            "clone, which is to be promoted",
            hint="name there only standbys that stay, by their application_name or cluster_name",
        )
    told = {*source.managed.paused, *source.managed.unpaused, *clones}
    shown = [f"{name} ({address})" for name, address in source.standbys if name not in told]
    if shown and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "standbys",
            f"it has standbys: {listed(shown)}; one that is promoted during the cutover knows no "
            f"fence, and would accept writes for shards that node {plan.target} has",
            hint="pause what promotes them (Patroni, repmgr, ...), then give --ignore-standby",
        )
