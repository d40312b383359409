"""A copy by repmgr: its dry run, on the target's host."""

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
_ABSENT = (126, 127)  # the shell's exit codes for a command that it cannot start


def look(context: Context) -> None:
    """Run `repmgr standby clone --dry-run` where the copy is to be made.

    It logs in to the source, for its tables and for replication, as the user who runs the
    target's server. Other checks refuse what keeps it from running. Raises TargetUnfit.
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
    clone = Clone(plan.id, plan.copy_slot, server)
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
            f"`repmgr standby clone --dry-run` did not end within {error.seconds:g} s",
            hint="run it on that host, and check its connection to the source",
        ) from error


def _refused(plan: MovePlan, error: CommandFailed, programs: Binaries) -> TargetUnfit:
    if error.completed.code in _ABSENT:
        return TargetUnfit(
            plan.target,
            "programs",
            f"{programs.directory} has no working repmgr, and `move.clone_with` is repmgr",
            hint="install repmgr for this version of PostgreSQL there, or set clone_with: "
            "basebackup in the topology",
        )
    said = [line.strip() for line in error.completed.stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith(("ERROR:", "connection to server"))]
    return TargetUnfit(
        plan.target,
        "repmgr_refuses",
        f"`repmgr standby clone` would not copy node {plan.source}: "
        f"{'; '.join(errors or said[-1:]) or 'it printed nothing'}",
        hint="allow repmgr's role in the source's pg_hba.conf, for its database and for "
        "replication, and add its password to ~/.pgpass of the user who runs the server there",
    )
