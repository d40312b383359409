"""Logins that a clone brings about: its own to the source, and shardctl's to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import together
from shardctl.hosts.host import CommandFailed
from shardctl.moves import admission
from shardctl.moves.preflight import rights, target
from shardctl.moves.refusals import TargetUnfit, collected
from shardctl.postgres import copying, passfile
from shardctl.postgres.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context

_SECONDS = 30.0
_ABSENT = 127  # what a command ends with that could not be begun
# What is only in today's environment neither copy nor standby will have.
_AS_THE_CLONE = 'unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS; exec "$@"'


def knows_password(context: Context) -> bool:
    """Tell whether a passfile has a password for the target, if the source asks for one."""
    return passfile.knows(context.session, context.target.host, context.target.port)


def judge_password(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target for which this shardctl has no password, though its source asks for one."""
    if context.need(knows_password):
        return
    node, database = context.target, context.topology.database
    login = f"{node.host}:{node.port}:{database.name}:{database.user}"
    yield TargetUnfit(
        node.name,
        "password",
        f"no line of the passfile is for {login}, and a clone asks for a password as its source "
        "does: shardctl could not log in to it",
        hint=f"add `{login}:PASSWORD` to ~/.pgpass (or PGPASSFILE) here, and to that of the user "
        "who runs each pooler",
    )


def read_files(context: Context) -> None:
    """Read the files from which the clone's own are made, as the run will."""
    if context.need(rights.look):
        return
    problems: list[ShardctlError] = []
    with collected(problems):
        copying.login_files(context.source.name, context.session)
    with collected(problems):
        there = admission.addresses(context.topology, context.target, context.session)
        source = Source(context.source, context.topology.database)
        copying.rules(source, context.session, there)
    if problems:
        raise together(problems)


def try_replication(context: Context) -> str | None:
    """Log in to the source for replication, from the target's host as its server's user.

    The password comes from that user's passfile there. Gives why it could not be tried, None
    when it was. Raises TargetUnfit when it failed.
    """
    machine, programs = context.need(target.look), context.of(target.programs)
    database = context.topology.database
    conninfo = Source(context.source, database).conninfo(context.purpose, replication="true")
    for program in (programs.program("psql") if programs else "psql", "psql"):
        argv = ["sh", "-c", _AS_THE_CLONE, "sh", program, "-X", "-w", "-q", "-t"]
        argv += ["-d", conninfo, "-c", "IDENTIFY_SYSTEM"]
        try:
            machine.host.run(argv, user=machine.account, env={"LC_ALL": "C"}, timeout=_SECONDS)
        except CommandFailed as error:
            if error.completed.code == _ABSENT:
                continue
            said = error.completed.stderr.strip().splitlines() or ["psql said nothing"]
            raise TargetUnfit(
                context.plan.target,
                "replication_login",
                f"{database.replication_user} cannot log in from its host to node "
                f"{context.plan.source} for replication: {said[0]}",
                hint="a clone is made so: let the role have REPLICATION, add a line `host "
                f"replication {database.replication_user} ...` to pg_hba.conf of the source, and "
                f"its password to ~/.pgpass of {machine.account or 'the server user'} there",
            ) from error
        else:
            return None
    return "there is no psql"


def notes(context: Context) -> Iterator[str]:
    """Say why the login for replication was not tried."""
    if (why := context.of(try_replication)) is not None:
        yield f"the replication login from node {context.plan.target} was not tried: {why}"
