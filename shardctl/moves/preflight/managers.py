"""What manages the source besides shardctl: repmgr and Patroni."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import queries, repmgr
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.repmgr import Repmgr
    from shardctl.topology.model import Database, Node

_PAUSED, _RUNS = "paused", "runs"


@dataclass(frozen=True, slots=True)
class Managed:
    """What manages the source; `daemons` maps repmgr's standbys to the state of their repmgrd.

    The state is a `repmgr.Daemon`, or why the standby could not be asked.
    """

    repmgr: Repmgr | None = None
    daemons: Mapping[str, str] = field(default_factory=dict)
    patroni: bool | None = None
    """Whether Patroni is paused; None where it does not manage the source."""

    @property
    def paused(self) -> list[str]:
        """Standbys whose failover repmgr has paused."""
        return [name for name, found in self.daemons.items() if found == _PAUSED]

    @property
    def unpaused(self) -> list[str]:
        """Standbys that repmgr may promote, or whose state is unknown, and why."""
        runs = [name for name, found in self.daemons.items() if found == _RUNS]
        unknown = [
            f"{name} (cannot be asked: {found})"
            for name, found in self.daemons.items()
            if found not in (_PAUSED, _RUNS, "none")
        ]
        return [*runs, *unknown]


def look(context: Context) -> Managed:
    """Ask the source which managers it has, and repmgr's standbys for their repmgrd."""
    node, database, purpose = context.source, context.topology.database, context.purpose
    known = repmgr.look(node, database, context.session, purpose=purpose)
    daemons = _daemons(node, database, known, purpose) if known is not None else {}
    return Managed(known, daemons, look_for_patroni(context.session))


def look_for_patroni(session: Connection) -> bool | None:
    """Return whether Patroni, which manages the session's server, is paused; None without one.

    It is seen by its session, which it has as long as it runs, or by its file together with a
    server that was started as it does: clones have the file, too. False where the role may not read
    that.
    """
    at_work, started, may_read = queries.one(session, QUERIES["patroni"])
    (kept,) = queries.one(session, QUERIES["patroni_settings"]) if may_read else (None,)
    if not at_work and not (started and kept is not None):
        return None
    try:
        values = json.loads(kept or "{}")
    except ValueError:  # it is being written at this moment
        return False
    return isinstance(values, dict) and values.get("pause") is True


def _daemons(node: Node, database: Database, known: Repmgr, purpose: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for member in known.standbys:
        try:
            found[member.name] = repmgr.daemon(member, known, node, database, purpose=purpose)
        except NodeUnavailable as error:
            found[member.name] = error.reason
    return found


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a manager that prevents the copy, or may promote a standby of the source."""
    plan, managed, user = context.plan, context.need(look), context.topology.database.user
    yield from unpaused(context)
    if managed.repmgr is not None and not managed.repmgr.may_leave:
        yield SourceUnfit(
            plan.source,
            "repmgr_rights",
            f"{user} may not read and delete repmgr's rows in database "
            f"{managed.repmgr.database}, so shardctl could not remove the clone from repmgr's "
            "cluster",
            hint=f"run there: GRANT USAGE ON SCHEMA repmgr TO {user}; GRANT SELECT, DELETE ON ALL "
            f"TABLES IN SCHEMA repmgr TO {user}",
        )


def unpaused(context: Context) -> Iterator[SourceUnfit]:
    """Refuse automatic failover: a promoted standby ignores the fence."""
    plan, managed = context.plan, context.need(look)
    if plan.options.ignore_standby:
        return
    if managed.unpaused:
        yield SourceUnfit(
            plan.source,
            "repmgr_failover",
            "repmgr may promote its standbys, and a promoted standby ignores the fence: "
            f"{listed(managed.unpaused)}",
            hint="run `repmgr service pause`, and `repmgr service unpause` after the move; or give "
            "--ignore-standby if nothing promotes them",
        )
    yield from unpaused_patroni(context)


def unpaused_patroni(context: Context) -> Iterator[SourceUnfit]:
    """Find a Patroni that is at work: it may also drop the move's slot, which it does not know."""
    plan = context.plan
    if context.need(look).patroni is False and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "patroni_failover",
            "Patroni manages it and is not paused: it may drop the move's replication slot, or "
            "promote a standby, which ignores the fence",
            hint="run `patronictl pause --wait`, and `patronictl resume` after the move; or give "
            "--ignore-standby if failover is disabled in another way",
        )


def notes(context: Context) -> Iterator[str]:
    """Report what the operator has to do with the managers after the move."""
    plan, managed = context.plan, context.need(look)
    if managed.repmgr is not None:
        if managed.paused:
            yield (
                f"repmgr's failover is paused on {listed(managed.paused)}: run "
                "`repmgr service unpause` after the move"
            )
        elif managed.unpaused:
            yield (
                f"shardctl takes repmgr's failover for disabled on {listed(managed.unpaused)} "
                "(--ignore-standby)"
            )
        yield (
            f"repmgr manages node {plan.source}; shardctl removes node {plan.target} from that "
            "cluster: give it a repmgr.conf of its own and run `repmgr primary register` there"
        )
    if managed.patroni is not None:
        yield (
            f"Patroni manages node {plan.source} and is paused: run `patronictl resume` after the "
            "move"
            if managed.patroni
            else f"Patroni manages node {plan.source}; shardctl takes it for paused "
            "(--ignore-standby)"
        )
        yield (
            f"Patroni will not manage node {plan.target}: give it a Patroni with a scope of its own"
        )
