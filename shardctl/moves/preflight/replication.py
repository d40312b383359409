"""Replication: whether the source can be cloned, and which standbys it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import settings as checked
from shardctl.meter import listed
from shardctl.moves.preflight import fleet, managers, server
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import queries
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_WORD = re.compile(r'"(?:[^"]|"")*"|[^\s,()"]+')
_LIST = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Replication:
    """What the source's replication is used for."""

    senders: int
    slots: int
    """How many of each are in use."""
    standbys: tuple[tuple[str, str], ...]
    """Name and address of each that streams from the source."""


def look(context: Context) -> Replication:
    """Ask the source for its senders, slots and standbys."""
    ours = {"slot": context.plan.slot, "purpose": context.purpose}
    senders, slots = queries.one(context.session, QUERIES["used"], ours)
    return Replication(
        senders=senders,
        slots=slots,
        standbys=tuple(context.session.execute(QUERIES["standbys"], ours).fetchall()),
    )


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a source that cannot be cloned, or whose standbys may be promoted."""
    parameters = context.need(server.look)
    if parameters.settings["wal_level"] == "minimal":  # which forbids senders, too
        yield SourceUnfit(
            context.source.name,
            "wal_level",
            "wal_level is minimal, so it cannot be cloned",
            hint="run `ALTER SYSTEM SET wal_level = replica` there, then restart it",
        )
    else:
        yield from full(context)
    yield from standbys(context)


def full(context: Context, *, slots: int = 1) -> Iterator[SourceUnfit]:
    """Refuse a source without WAL senders for a move, or without the slots that it makes."""
    parameters, found = context.need(server.look), context.need(look)
    for name, used, wanted, code in (
        ("max_wal_senders", found.senders, checked.SENDERS, "wal_senders"),
        ("max_replication_slots", found.slots, slots, "replication_slots"),
    ):
        most = parameters.number(name)
        if most - used < wanted:
            yield SourceUnfit(
                context.source.name,
                code,
                f"{name} is {most} and {used} are in use, but a move needs {wanted} free",
                hint=f"run `ALTER SYSTEM SET {name} = {used + wanted}` or more there, then "
                "restart it",
            )


def standbys(context: Context) -> Iterator[SourceUnfit]:
    """Refuse standbys that may be promoted, and a clone that would be a synchronous standby.

    The check `managers` judges standbys that repmgr knows. Clones of other moves are left out:
    only their own move promotes them.
    """
    plan, found = context.plan, context.need(look)
    names = synchronous(context.need(server.look).settings.get("synchronous_standby_names", ""))
    ours = {"*", plan.slot, plan.target.lower(), "walreceiver", "pg_basebackup"}
    if matched := [name for name in names if name in ours]:
        yield SourceUnfit(
            plan.source,
            "synchronous_clone",
            f"synchronous_standby_names has {', '.join(matched)}, so commits would wait for the "
            + ("target" if context.streams else "clone"),
            hint="list only permanent standbys there, by their application_name or cluster_name",
        )
    managed = context.need(managers.look)
    clones = (journal.slot(move.id) for move, _ in fleet.others(context))
    known = {*managed.paused, *managed.unpaused, *clones}
    shown = [f"{name} ({address})" for name, address in found.standbys if name not in known]
    # A streamed move waits in its cutover until they have flushed the fence.
    if shown and not plan.options.ignore_standby and not context.streams:
        yield SourceUnfit(
            plan.source,
            "standbys",
            f"it has standbys: {listed(shown)}; one that is promoted during the cutover ignores "
            f"the fence and would accept writes for shards of node {plan.target}",
            hint="disable failover (Patroni, repmgr, ...), then give --ignore-standby",
        )


def notes(context: Context) -> Iterator[str]:
    """Say which standbys are ignored."""
    if context.plan.options.ignore_standby:
        for name, address in context.need(look).standbys:
            yield f"standby {name} ({address}) is ignored: promoted now, it knows no fence"


def synchronous(setting: str) -> list[str]:
    """List the names in `synchronous_standby_names`, in lower case.

    >>> synchronous('ANY 2 (s1, "S 2", *)'), synchronous("first"), synchronous("")
    (['s1', 's 2', '*'], ['first'], [])
    """
    inner = _LIST.fullmatch(setting)
    words = _WORD.findall(inner[1] if inner else setting)
    return [word.removeprefix('"').removesuffix('"').replace('""', '"').lower() for word in words]
