"""Preflight of the login with which a clone is copied and follows its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from shardctl.hosts.host import Host
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Topology

_SECONDS = 30.0
_ABSENT = 127  # what a command ends with that could not be begun
# What is only in today's environment neither copy nor standby will have.
_AS_THE_CLONE = 'unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS; exec "$@"'


def no_password(topology: Topology, plan: MovePlan) -> TargetUnfit:
    """Refuse a target for which this shardctl has no password, though its source asks for one."""
    node, database = topology.nodes[plan.target], topology.database
    login = f"{node.host}:{node.port}:{database.name}:{database.user}"
    return TargetUnfit(
        node.name,
        "password",
        f"no line of the passfile is for {login}, and a clone asks for a password as its source "
        "does: shardctl could not log in to it",
        hint=f"add `{login}:PASSWORD` to ~/.pgpass (or PGPASSFILE) here, and to that of the user "
        "who runs each pooler",
    )


def try_replication(
    topology: Topology,
    plan: MovePlan,
    host: Host,
    *,
    programs: Binaries | None,
    account: str | None,
    purpose: str,
) -> str | None:
    """Log in to the source for replication, from the target's host as its server's user.

    The password comes from that user's passfile there. Gives why it could not be tried, None
    when it was. Raises TargetUnfit when it failed.
    """
    source, database = topology.nodes[plan.source], topology.database
    conninfo = Source(source, database).conninfo(purpose, replication="true")
    for program in (programs.program("psql") if programs else "psql", "psql"):
        argv = ["sh", "-c", _AS_THE_CLONE, "sh", program, "-X", "-w", "-q", "-t"]
        argv += ["-d", conninfo, "-c", "IDENTIFY_SYSTEM"]
        try:
            host.run(argv, user=account, env={"LC_ALL": "C"}, timeout=_SECONDS)
        except CommandFailed as error:
            if error.completed.code == _ABSENT:
                continue
            said = error.completed.stderr.strip().splitlines() or ["psql said nothing"]
            raise TargetUnfit(
                plan.target,
                "replication_login",
                f"{database.replication_user} cannot log in from its host to node {plan.source} "
                f"for replication: {said[0]}",
                hint="a clone is made so: let the role have REPLICATION, add a line `host "
                f"replication {database.replication_user} ...` to pg_hba.conf of the source, and "
                f"its password to ~/.pgpass of {account or 'the server user'} there",
            ) from error
        else:
            return None
    return "there is no psql"
