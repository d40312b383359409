"""A copy by repmgr: its own dry run, on the target's host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed, CommandTimedOut
from shardctl.moves.preflight import managers, target
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import clone as clones
from shardctl.postgres import hosted, repmgr_clone
from shardctl.postgres.clone import Clone
from shardctl.postgres.repmgr_clone import RepmgrUnfit
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries

_SECONDS = 60.0
_ABSENT = (126, 127)  # what a command ends with that could not be begun


def look(context: Context) -> None:
    """Let `repmgr standby clone` try all but the copy, where it is to make it.

    It logs in to the source, for its tables and for replication, as the target's server's user.
    What cannot be tried is refused elsewhere. Raises TargetUnfit.
    """
    plan, node, machine = context.plan, context.target, context.need(target.look)
    if plan.options.clone_with != "repmgr" or node.data_directory is None:
        return
    programs, known = context.need(target.programs), context.need(managers.look).repmgr
    if known is None or known.primary is None:
        return
    server = hosted.of_node(
        node,
        node.data_directory,
        machine=machine.host,
        account=machine.account,
        programs=programs,
    )
    clone = Clone(plan.id, plan.slot, server)
    source = Source(context.source, context.topology.database)
    try:
        argv, configuration = repmgr_clone.of_cluster(clone, source, known, plan.options.max_rate)
        clones.attempt(clone, [*argv, "--dry-run"], timeout=_SECONDS, configuration=configuration)
    except RepmgrUnfit as error:
        raise TargetUnfit(plan.target, "repmgr_unfit", error.reason, hint=error.hint) from error
    except CommandFailed as error:
        raise _refused(plan, error, programs) from error
    except CommandTimedOut as error:
        raise TargetUnfit(
            plan.target,
            "repmgr_refuses",
            f"the dry run of `repmgr standby clone` did not end within {error.seconds:g} s",
            hint="see what the host of the node waits for when it logs in to the source",
        ) from error


def _refused(plan: MovePlan, error: CommandFailed, programs: Binaries) -> TargetUnfit:
    if error.completed.code in _ABSENT:
        return TargetUnfit(
            plan.target,
            "programs",
            f"{programs.directory} has no repmgr that runs, with which it is to be cloned",
            hint="install repmgr for this version of PostgreSQL there, or write clone_with: "
            "basebackup into the topology",
        )
    said = [line.strip() for line in error.completed.stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith(("ERROR:", "connection to server"))]
    return TargetUnfit(
        plan.target,
        "repmgr_refuses",
        f"`repmgr standby clone` would not copy node {plan.source}: "
        f"{'; '.join(errors or said[-1:]) or 'it said nothing'}",
        hint="repmgr's role has to be let in to its database and for replication by pg_hba.conf of "
        "the source, its password stands in ~/.pgpass of the server's user there",
    )
