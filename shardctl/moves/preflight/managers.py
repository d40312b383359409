"""What manages the source beside shardctl: repmgr and Patroni."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.moves.refusals import SourceUnfit, listed
from shardctl.postgres import patroni, repmgr
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.patroni import Patroni
    from shardctl.postgres.repmgr import Repmgr
    from shardctl.topology.model import Database, Node

_PAUSED, _RUNS = "paused", "runs"


@dataclass(frozen=True, slots=True)
class Managed:
    """What manages the source; `daemons` are repmgr's standbys and what repmgrd does there.

    That is a `repmgr.Daemon`, or why it could not be asked.
    """

    repmgr: Repmgr | None = None
    daemons: Mapping[str, str] = field(default_factory=dict)
    patroni: Patroni | None = None

    @property
    def paused(self) -> list[str]:
        """Standbys that nothing promotes by itself, as repmgr has been told."""
        return [name for name, found in self.daemons.items() if found == _PAUSED]

    @property
    def unpaused(self) -> list[str]:
        """Standbys that repmgr may promote, or of which nobody knows, and why."""
        runs = [name for name, found in self.daemons.items() if found == _RUNS]
        unknown = [
            f"{name} (not asked: {found})"
            for name, found in self.daemons.items()
            if found not in (_PAUSED, _RUNS, "none")
        ]
        return [*runs, *unknown]


def look(context: Context) -> Managed:
    """Ask the source, and repmgr's standbys what their repmgrd does."""
    node, database, purpose = context.source, context.topology.database, context.purpose
    known = repmgr.look(node, database, context.session, purpose=purpose)
    daemons = _daemons(node, database, known, purpose) if known is not None else {}
    return Managed(known, daemons, patroni.look(context.session))


def _daemons(node: Node, database: Database, known: Repmgr, purpose: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for member in known.standbys:
        try:
            found[member.name] = repmgr.daemon(member, known, node, database, purpose=purpose)
        except NodeUnavailable as error:
            found[member.name] = error.reason
    return found


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Find what keeps the source from being copied as is wanted, or promotes a standby of it."""
    plan, managed, user = context.plan, context.need(look), context.topology.database.user
    yield from unpaused(context)
    if managed.repmgr is not None and not managed.repmgr.may_leave:
        yield SourceUnfit(
            plan.source,
            "repmgr_rights",
            f"{user} may not read and delete the rows of repmgr in database "
            f"{managed.repmgr.database}, so the clone could not be taken out of repmgr's cluster",
            hint=f"there: GRANT USAGE ON SCHEMA repmgr TO {user}; GRANT SELECT, DELETE ON ALL "
            f"TABLES IN SCHEMA repmgr TO {user}",
        )
        return
    primary = managed.repmgr.primary if managed.repmgr is not None else None
    if plan.options.clone_with == "repmgr" and primary is None:
        yield SourceUnfit(
            plan.source,
            "repmgr_absent",
            "it is not registered with repmgr as a primary, and `move.clone_with` is repmgr",
            hint="`repmgr primary register` there, or clone_with: basebackup in the topology",
        )


def unpaused(context: Context) -> Iterator[SourceUnfit]:
    """Find what fails over by itself, and would know no fence: it may come about until the end."""
    plan, managed = context.plan, context.need(look)
    if plan.options.ignore_standby:
        return
    if managed.unpaused:
        yield SourceUnfit(
            plan.source,
            "repmgr_failover",
            f"repmgr may promote standbys of it, which know no fence: {listed(managed.unpaused)}",
            hint="`repmgr service pause`, and `repmgr service unpause` when the move is over; "
            "or --ignore-standby where nothing promotes them",
        )
    if managed.patroni is not None and not managed.patroni.paused:
        yield SourceUnfit(
            plan.source,
            "patroni_failover",
            "it is managed by Patroni, which is not paused: it may drop the move's replication "
            "slot, and promote a standby, which knows no fence",
            hint="`patronictl pause --wait`, and `patronictl resume` when the move is over; "
            "or --ignore-standby where you know better",
        )


def notes(context: Context) -> Iterator[str]:
    """Say what has to be done for the source's manager afterwards, and what the new node needs."""
    plan, managed = context.plan, context.need(look)
    if managed.repmgr is not None:
        if plan.options.clone_with == "repmgr":
            yield f"node {plan.target} is copied by `repmgr standby clone`"
        if managed.paused:
            yield (
                f"repmgr's failover is paused on {listed(managed.paused)}: "
                "`repmgr service unpause` when the move is over"
            )
        elif managed.unpaused:
            yield f"repmgr is taken for paused (--ignore-standby) on {listed(managed.unpaused)}"
        yield (
            f"node {plan.source} is managed by repmgr, and node {plan.target} is taken out of that "
            "cluster: it needs a repmgr.conf and `repmgr primary register` for a cluster of its own"
        )
    if managed.patroni is not None:
        yield (
            f"node {plan.source} is managed by Patroni, which is paused: `patronictl resume` when "
            "the move is over"
            if managed.patroni.paused
            else f"node {plan.source} is managed by Patroni, which is taken for paused "
            "(--ignore-standby)"
        )
        yield (
            f"node {plan.target} will not be managed by Patroni: it needs a Patroni with a scope "
            "of its own"
        )
