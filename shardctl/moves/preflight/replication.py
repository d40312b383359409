"""Replication: whether the source can have a clone, and which other standbys it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import settings as checked
from shardctl.moves.preflight import fleet, managers, server
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit, listed
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
    """Name and address of each that streams from here."""
    other_slots: tuple[tuple[str, str], ...]
    """Name and kind of slots that are not the move's own."""


def look(context: Context) -> Replication:
    """Ask the source for its senders, slots and standbys."""
    ours = {"slot": context.plan.slot, "purpose": context.purpose}
    senders, slots = queries.one(context.session, QUERIES["used"], ours)
    return Replication(
        senders=senders,
        slots=slots,
        standbys=tuple(context.session.execute(QUERIES["standbys"], ours).fetchall()),
        other_slots=tuple(context.session.execute(QUERIES["slots"], ours).fetchall()),
    )


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Find what keeps the source from being cloned, and standbys that know no fence."""
    node, parameters, found = context.source.name, context.need(server.look), context.need(look)
    if parameters.settings["wal_level"] == "minimal":  # which forbids senders, too
        yield SourceUnfit(
            node,
            "wal_level",
            "wal_level = minimal: nothing can be cloned from it",
            hint="`ALTER SYSTEM SET wal_level = replica` and a restart",
        )
    else:
        for name, used, wanted, code in (
            ("max_wal_senders", found.senders, checked.SENDERS, "wal_senders"),
            ("max_replication_slots", found.slots, 1, "replication_slots"),
        ):
            most = parameters.number(name)
            if most - used < wanted:
                yield SourceUnfit(
                    node,
                    code,
                    f"{name} = {most}, {used} of them in use; a move needs {wanted} free",
                    hint=f"`ALTER SYSTEM SET {name} = {used + wanted}` or more, and a restart",
                )
    yield from standbys(context)


def standbys(context: Context) -> Iterator[SourceUnfit]:
    """Find standbys that know no fence, and a setting that would make the clone one of them.

    Those of which repmgr tells whether it may promote them are its matter. So are the clones of
    other moves, which nothing promotes but those.
    """
    plan, found = context.plan, context.need(look)
    names = synchronous(context.need(server.look).settings.get("synchronous_standby_names", ""))
    ours = {"*", plan.slot, plan.target.lower(), "walreceiver", "pg_basebackup"}
    if matched := [name for name in names if name in ours]:
        yield SourceUnfit(
            plan.source,
            "synchronous_clone",
            f"synchronous_standby_names has {', '.join(matched)}, so commits would wait for the "
            "clone, which is to be promoted",
            hint="name there only standbys that stay, by their application_name or cluster_name",
        )
    managed = context.need(managers.look)
    clones = (journal.slot(move.id) for move, _ in fleet.others(context))
    told = {*managed.paused, *managed.unpaused, *clones}
    shown = [f"{name} ({address})" for name, address in found.standbys if name not in told]
    if shown and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "standbys",
            f"it has standbys: {listed(shown)}; one that is promoted during the cutover knows no "
            f"fence, and would accept writes for shards that node {plan.target} has",
            hint="pause what promotes them (Patroni, repmgr, ...), then give --ignore-standby",
        )


def notes(context: Context) -> Iterator[str]:
    """Say which standbys are ignored, and what becomes of slots."""
    found = context.need(look)
    if context.plan.options.ignore_standby:
        for name, address in found.standbys:
            yield f"standby {name} ({address}) is ignored: promoted now, it knows no fence"
    away = [name for name, kind in found.other_slots if kind == "physical"]
    if away:
        yield f"replication slots whose standbys are away: {listed(away)}"
    logical = [name for name, kind in found.other_slots if kind == "logical"]
    if logical:
        yield f"logical replication slots do not come along: {listed(logical)}"


def synchronous(setting: str) -> list[str]:
    """List the names in `synchronous_standby_names`, in lower case.

    >>> synchronous('ANY 2 (s1, "S 2", *)'), synchronous("first"), synchronous("")
    (['s1', 's 2', '*'], ['first'], [])
    """
    inner = _LIST.fullmatch(setting)
    words = _WORD.findall(inner[1] if inner else setting)
    return [word.removeprefix('"').removesuffix('"').replace('""', '"').lower() for word in words]
