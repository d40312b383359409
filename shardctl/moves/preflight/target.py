"""The target's machine: the user, programs and commands that run its server."""

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
"""What a clone needs besides the server's own programs."""

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The target's host, and the user who runs its server; None is the current user."""

    host: Host
    account: str | None = None


def look(context: Context) -> Machine:
    """Reach the target's host."""
    host = host_of(context.target)
    return Machine(host, accounts.account_on(host, context.target.os_user))


def programs(context: Context) -> Binaries:
    """Find the node's PostgreSQL programs; raises TargetUnfit where some are missing."""
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
                f"{found.directory} has no working {name}, which a clone needs",
                hint="install PostgreSQL's client and server programs there, or give the node "
                "another bin_directory",
            ) from error
    return found


def judge_version(context: Context) -> Iterator[TargetUnfit]:
    """Refuse programs of another major version than the source's."""
    node, there, source = context.target, context.need(programs), context.need(server.look)
    if there.major == source.major:
        return
    machine = context.need(look)
    fitting = binaries.of_major(source.major, machine.host, account=machine.account)
    streams = (
        f"to use PostgreSQL {there.major}, start the node's server and run `shardctl init`, which "
        "makes it a member: shards are streamed to members. To clone, "
        if there.major > source.major
        else ""
    )
    yield TargetUnfit(
        node.name,
        "version",
        f"expected PostgreSQL {source.major} (the source has {source.version}), found "
        f"{there.major} in {there.directory}",
        hint=streams
        + (
            f"set bin_directory of node {node.name} to {fitting.directory}"
            if fitting
            else f"install PostgreSQL {source.major} there, and set the node's bin_directory"
        ),
    )


def control(context: Context) -> None:
    """Run the operator's status command; raises TargetUnfit where its answer is unclear."""
    machine = context.need(look)
    why = host_tests.why_no_status(machine.host, context.target, machine.account)
    if why is not None:
        raise TargetUnfit(
            context.target.name,
            "control",
            why,
            hint="correct `control` of the node: `sh -c` runs its commands on its host as the "
            "user who logs in there, without a terminal for a password",
        )


def libc(context: Context) -> tuple[str | None, str | None]:
    """Return both hosts' C library version, which orders indexes; None where it is unknown."""
    context.need(look)
    return _libc(context.source), _libc(context.target)


def judge_libc(context: Context) -> Iterator[TargetUnfit]:
    """Refuse hosts whose C libraries may sort differently, if any collation depends on them."""
    here, there = context.need(libc)
    if None in (here, there) or here == there or not context.need(schemas.look).collations:
        return
    yield TargetUnfit(
        context.target.name,
        "libc",
        f"its host has {there}, but the source's host has {here}: they may sort text differently, "
        "which corrupts indexes",
        hint="install the same version of the operating system on both hosts first",
    )


def note_libc(context: Context) -> Iterator[str]:
    """Report that the libraries could not be compared."""
    if None in context.need(libc):
        yield (
            f"node {context.target.name}: not checked: whether its C library sorts as the source's "
            "does"
        )


def _libc(node: Node) -> str | None:
    try:
        said = host_of(node).run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS)
    except (CommandFailed, CommandTimedOut, HostLost, HostUnreachable, HostUnfit):
        return None
    return said.stdout.strip()
