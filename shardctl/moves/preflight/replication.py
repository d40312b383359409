"""Replication: whether the source can be cloned or decoded, and which standbys it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves import marks
from shardctl.moves.plan import NodeUnfit, PreflightRefused, SourceUnfit
from shardctl.moves.preflight import fleet, server, wal
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.topology.model import NodeName


SENDERS = 2
"""A clone takes them: pg_basebackup one for the files and one for the WAL in the meantime."""

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


def judge(context: Context) -> Iterator[NodeUnfit]:
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
        found = context.need(look)
        yield from full(context.source.name, parameters, (found.senders, found.slots))
    yield from judge_standbys(context)


def full(
    node: NodeName,
    there: Server,
    used: tuple[int, int],
    *,
    wanted: tuple[int, int] = (SENDERS, 1),
    otherwise: str = "",
) -> Iterator[NodeUnfit]:
    """Refuse a server whose free WAL senders and replication slots are fewer than a move takes.

    `otherwise` ends the hint.
    """
    names = (("max_wal_senders", "wal_senders"), ("max_replication_slots", "replication_slots"))
    for (name, code), in_use, free in zip(names, used, wanted, strict=True):
        most = there.number(name)
        if most - in_use < free:
            yield NodeUnfit(
                node,
                code,
                f"{name} is {most} and {in_use} are in use, but a move needs {free} free",
                hint=f"run `ALTER SYSTEM SET {name} = {in_use + free}` or more there, then "
                f"restart it{otherwise}",
            )


def judge_standbys(context: Context) -> Iterator[SourceUnfit]:
    """Refuse standbys that may be promoted, and a clone that would be a synchronous standby.

    Clones of other moves are left out: only their own move promotes them.
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
    known = {one.slot for one in fleet.others(context)}
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


def look_for_timeout(context: Context) -> int:
    """Ask the source after how many seconds it drops an unused slot; 0: it does not."""
    (seconds,) = queries.one(context.session, QUERIES["timeout"])
    return int(seconds)


def judge_decoding(context: Context) -> Iterator[NodeUnfit]:
    """Refuse a source that cannot decode its WAL, or not for one stream more."""
    node, there = context.plan.source, context.need(server.look)
    if there.major < OLDEST:
        yield SourceUnfit(
            node,
            "too_old",
            f"PostgreSQL {there.version} cannot filter what it publishes",
            hint=f"use `move-shards --method clone`: a stream needs PostgreSQL {OLDEST} or newer",
        )
    yield from undecodable(node, there, otherwise=", or use `move-shards --method clone`")
    found = context.need(look)
    # The slot of a reverse is there already.
    slots = 1 if context.plan.reverses is None else 0
    used = (found.senders, found.slots)
    yield from full(node, there, used, wanted=(SENDERS, slots))


def undecodable(node: NodeName, there: Server, *, otherwise: str) -> Iterator[NodeUnfit]:
    """Refuse a server that cannot decode its WAL; `otherwise` ends the hints."""
    if there.version_number in BROKEN:
        yield NodeUnfit(
            node,
            "decoding_broken",
            f"logical decoding of PostgreSQL {there.version} is known to run out of memory",
            hint=f"install {BROKEN[there.version_number]} or newer there, and restart it"
            f"{otherwise}",
        )
    if (level := there.settings["wal_level"]) != "logical":
        yield NodeUnfit(
            node,
            "wal_level",
            f"wal_level = {level}, and logical replication needs logical",
            hint="run ALTER SYSTEM SET wal_level = logical there and restart the server"
            f"{otherwise}",
        )


def judge_timeout(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a source that would drop the slot while the copy is made."""
    seconds = context.need(look_for_timeout)
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
    return tuple(sorted(marks.standbys_away(context.session)))


def notes_on_standbys(context: Context) -> Iterator[str]:
    """Say which standbys have to come back before the cutover."""
    away = context.need(look_for_standbys)
    if away and not context.plan.options.ignore_standby:
        yield (
            f"node {context.plan.source} has standbys that are not connected: {listed(away)}; the "
            "cutover does not begin without them: start them, drop the slots of those that are "
            "gone, or give --ignore-standby"
        )


def note_timeout(context: Context) -> Iterator[str]:
    """Say when the source drops a slot by itself."""
    if seconds := context.need(look_for_timeout):
        yield (
            f"node {context.plan.source} drops a slot that is unused for {seconds} s "
            "(idle_replication_slot_timeout): a move that stops for longer copies all rows again"
        )
