"""Logins that a clone needs: its own to the source, and by which rules it admits others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl import libpq
from shardctl.errors import together
from shardctl.hosts import ports
from shardctl.hosts.host import CommandFailed
from shardctl.ids.generator import quote_identifier
from shardctl.moves.preflight import rights, target
from shardctl.moves.refusals import TargetUnfit, collected
from shardctl.postgres import copying

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

_SECONDS = 30.0
_ABSENT = 127  # the shell's exit code for a missing program
# Neither the copy nor the standby will have the variables of this environment.
_AS_THE_CLONE = 'unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS; exec "$@"'


def read_files(context: Context) -> None:
    """Read the source's files from which the run makes the clone's."""
    if context.need(rights.look):
        return
    problems: list[ShardctlError] = []
    with collected(problems):
        copying.login_files(context.source.name, context.session)
    with collected(problems):
        there = addresses(context.topology, context.target, context.session)
        copying.rules(context.topology.database.user, context.session, there)
    if problems:
        raise together(problems)


def try_replication(context: Context) -> str | None:
    """Log in to the source for replication, from the target's host as its server's user.

    The password comes from that user's passfile there. Returns why the login could not be tried,
    None when it succeeded. Raises TargetUnfit when it failed.
    """
    machine, programs = context.need(target.look), context.of(target.programs)
    database = context.topology.database
    conninfo = libpq.for_replication(context.source, database, context.purpose, replication="true")
    for program in (programs.program("psql") if programs else "psql", "psql"):
        argv = ["sh", "-c", _AS_THE_CLONE, "sh", program, "-X", "-w", "-q", "-t"]
        argv += ["-d", conninfo, "-c", "IDENTIFY_SYSTEM"]
        try:
            machine.host.run(argv, user=machine.account, env={"LC_ALL": "C"}, timeout=_SECONDS)
        except CommandFailed as error:
            if error.completed.code == _ABSENT:
                continue
            said = error.completed.stderr.strip().splitlines() or ["psql printed nothing"]
            raise TargetUnfit(
                context.plan.target,
                "replication_login",
                f"{database.replication_user} cannot log in from its host to node "
                f"{context.plan.source} for replication: {said[0]}",
                hint="cloning needs a replication login: run ALTER ROLE "
                f"{quote_identifier(database.replication_user)} REPLICATION on the source, add a "
                f"line `host replication {database.replication_user} ...` to its pg_hba.conf, and "
                f"the password to ~/.pgpass of {machine.account or 'the server user'} on the "
                "target's host",
            ) from error
        else:
            return None
    return "its host has no psql"


def notes(context: Context) -> Iterator[str]:
    """Report why the replication login could not be tried."""
    if (why := context.of(try_replication)) is not None:
        yield f"node {context.plan.target}: not checked: its replication login to the source: {why}"


def addresses(topology: Topology, target: Node, source: Connection) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to the target.

    They include this machine's address as the `source` sees it.
    """
    row = source.execute("SELECT host(inet_client_addr())").fetchone()
    seen = {row[0]} if row and row[0] else set()
    hosts = {target.host, *(pooler.host for pooler in topology.poolers.values())}
    found = {address for host in hosts for address in ports.addresses(host)}
    return sorted({*found, *seen, *ports.sources(target.host), "127.0.0.1", "::1"})
