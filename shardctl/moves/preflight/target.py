"""The target's machine: who runs its server there, with which programs, by whose commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import host_tests
from shardctl.hosts import accounts
from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostLost, HostUnreachable
from shardctl.hosts.reach import HostUnfit, host_of
from shardctl.moves.preflight import schemas, server
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

PROGRAMS = ("pg_basebackup", "pg_controldata")
"""What a clone needs beside a server's own programs."""

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The target's host, and who runs its server there; None is oneself."""

    host: Host
    account: str | None = None


def look(context: Context) -> Machine:
    """Reach the target's host."""
    host = host_of(context.target)
    return Machine(host, accounts.account_on(host, context.target.os_user))


def programs(context: Context) -> Binaries:
    """Find the programs that the node runs with; raises TargetUnfit where some are missing."""
    node, machine = context.target, context.need(look)
    found = binaries.find(node.bin_directory, account=machine.account, host=machine.host)
    for name in PROGRAMS:
        argv = [found.program(name), "--version"]
        try:
            machine.host.run(argv, user=machine.account, timeout=_SECONDS)
        except CommandFailed as error:
            raise TargetUnfit(
                node.name,
                "programs",
                f"{found.directory} has no {name} that runs, which a clone needs",
                hint="install PostgreSQL's client and server programs there, or name another "
                "bin_directory for the node",
            ) from error
    return found


def judge_version(context: Context) -> Iterator[TargetUnfit]:
    """Refuse programs of another major version than the source's."""
    node, there, source = context.target, context.need(programs), context.need(server.look)
    if there.major == source.major:
        return
    fitting = binaries.of_major(source.major, context.need(look).host)
    yield TargetUnfit(
        node.name,
        "version",
        f"{there.directory} has PostgreSQL {there.major}, and the source is {source.version}",
        hint=f"give node {node.name} bin_directory: {fitting.directory}"
        if fitting
        else f"install PostgreSQL {source.major} there, and name it as bin_directory of the node",
    )


def control(context: Context) -> None:
    """Run the operator's command for the status; raises TargetUnfit where it does not tell it."""
    machine = context.need(look)
    why = host_tests.why_no_status(machine.host, context.target, machine.account)
    if why is not None:
        raise TargetUnfit(
            context.target.name,
            "control",
            why,
            hint="correct `control` of the node; its commands are run by `sh -c` on its host, as "
            "the user who logs in there, and nobody is asked for a password",
        )


def libc(context: Context) -> tuple[str | None, str | None]:
    """Ask both hosts for their C library, whose collations order indexes; None: it is unknown."""
    context.need(look)
    return _libc(context.source), _libc(context.target)


def judge_libc(context: Context) -> Iterator[TargetUnfit]:
    """Refuse hosts that may order texts differently, if anything is ordered by their libraries."""
    here, there = context.need(libc)
    if None in (here, there) or here == there or not context.need(schemas.look).collations:
        return
    yield TargetUnfit(
        context.target.name,
        "libc",
        f"its host has {there}, and the source's has {here}: they may order texts otherwise, and "
        "indexes would be wrong there",
        hint="bring both hosts to one version of the system first",
    )


def note_libc(context: Context) -> Iterator[str]:
    """Say that the libraries were not compared."""
    if None in context.need(libc):
        yield "the C libraries of source and target were not compared: collations may differ"


def _libc(node: Node) -> str | None:
    try:
        said = host_of(node).run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS)
    except (CommandFailed, CommandTimedOut, HostLost, HostUnreachable, HostUnfit):
        return None
    return said.stdout.strip()
