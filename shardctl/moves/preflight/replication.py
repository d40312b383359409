"""Replication: whether the source can be cloned or decoded, and which standbys it has."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight import fleet, server
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_WORD = re.compile(r'"(?:[^"]|"")*"|[^\s,()"]+')


Standbys = tuple[tuple[str, str], ...]
"""Name and address of each that streams from a server."""


def look(context: Context) -> Standbys:
    """Ask the source for its standbys."""
    ours = {"slot": context.plan.slot, "purpose": context.purpose}
    return tuple(context.session.execute(QUERIES["standbys"], ours).fetchall())


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
    clones = {one.slot for one in fleet.others(context)}
    shown = [f"{name} ({address})" for name, address in found if name not in clones]
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
        for name, address in context.need(look):
            yield f"standby {name} ({address}) is ignored: promoted now, it knows no fence"


def synchronous(setting: str) -> list[str]:
    """List the words of `synchronous_standby_names`, in lower case, its names among them.

    >>> synchronous('ANY 2 (s1, "S 2", *)'), synchronous("")
    (['any', '2', 's1', 's 2', '*'], [])
    """
    words = _WORD.findall(setting)
    return [word.removeprefix('"').removesuffix('"').replace('""', '"').lower() for word in words]


def look_for_patroni(context: Context) -> bool | None:
    """Return whether Patroni, which manages the source, is paused; None without one.

    It is seen by its session, which it has as long as it runs, or by its file together with a
    server that was started as it does: clones have the file, too. False where the role may not read
    that.
    """
    at_work, started, may_read = queries.one(context.session, QUERIES["patroni"])
    (kept,) = queries.one(context.session, QUERIES["patroni_settings"]) if may_read else (None,)
    if not at_work and not (started and kept is not None):
        return None
    try:
        values = json.loads(kept or "{}")
    except ValueError:  # it is being written at this moment
        return False
    return isinstance(values, dict) and values.get("pause") is True


def judge_patroni(context: Context) -> Iterator[SourceUnfit]:
    """Refuse one at work: it drops slots that it does not know, and promotes standbys."""
    plan = context.plan
    if context.need(look_for_patroni) is False and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "patroni_failover",
            "Patroni manages it and is not paused: it may drop the move's replication slot, or "
            "promote a standby, which ignores the fence",
            hint="run `patronictl pause --wait`, and `patronictl resume` after the move; or give "
            "--ignore-standby if failover is disabled in another way",
        )


def note_patroni(context: Context) -> Iterator[str]:
    """Report what the operator has to do after the move."""
    plan = context.plan
    if context.need(look_for_patroni) is not None:
        yield (
            f"Patroni manages node {plan.source}: run `patronictl resume` after the move, and give "
            f"node {plan.target} a Patroni with a scope of its own"
        )
