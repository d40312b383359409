"""The target's machine: the user, programs, clock and commands that run its server."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import clock, hosts
from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, ports, scripts
from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostLost, HostUnreachable
from shardctl.hosts.reach import HostUnfit, host_of
from shardctl.moves import sub_step
from shardctl.moves.preflight import schemas, server
from shardctl.moves.refusals import PreflightRefused, TargetUnfit
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.clock import Offset
    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node


PROGRAMS = ("pg_basebackup",)
"""What a clone needs besides the server's own programs."""

TRIAL = ".trial"
"""The end of the name of a trial's directory, which is beside the data directory."""

_SECONDS = 30.0
_CONNECT_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """The target's host, and the user who runs its server; None is the current user."""

    host: Host
    account: str | None = None


def look(context: Context) -> Machine:
    """Reach the target's host."""
    host = host_of(context.target)
    return Machine(host, accounts.account_on(host, context.target.os_user))


def look_at_port(context: Context) -> None:
    """See that nothing listens at the target's address; raises TargetUnfit."""
    node = context.target
    if _listens(node) and _still_listens(context):
        raise TargetUnfit(
            node.name,
            "port_taken",
            f"{_listener(node) or 'a program'} listens at {node.host}:{node.port}",
            hint="correct the node's host and port in the topology; or, if it is a server that is "
            "not needed any more, stop it and move its data directory away",
        )


def _still_listens(context: Context) -> bool:
    """Look again after another preflight's trial has ended, if one runs there."""
    machine, data = context.of(look), context.target.data_directory
    if machine is not None and data is not None:
        where = f"{data}{TRIAL}", str(data)
        scripts.run(
            machine.host, "trial", "idle", *where, user=machine.account, timeout=3 * _SECONDS
        )
    return _listens(context.target)


def measure(context: Context) -> float:
    """Measure a round trip to the target's machine, in ms."""
    context.need(look_at_port)  # an unreachable machine is not measured
    return sub_step.of_machine(context.target)


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
    why = hosts.why_no_status(machine.host, context.target, machine.account)
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


def _listens(node: Node) -> bool:
    """Return whether a program accepts connections there; raises TargetUnfit where unknown."""
    try:
        if node.host.startswith("/"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_CONNECT_S)
                probe.connect(f"{node.host}/.s.PGSQL.{node.port}")
        else:
            socket.create_connection((node.host, node.port), timeout=_CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError as error:
        raise TargetUnfit(
            node.name,
            "unreachable",
            f"cannot reach {node.host}:{node.port}: {error.strerror or error}",
            hint="check the node's host and port in the topology, and the network",
        ) from error
    return True


def _listener(node: Node) -> str | None:
    """Name the program there; None where its host does not report it."""
    try:
        return ports.listener(node.port, host_of(node))
    except ShardctlError as error:  # the checks of the host report it
        logger.debug("node %s: %s", node.name, error.message)
        return None


def _libc(node: Node) -> str | None:
    try:
        said = host_of(node).run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS)
    except (CommandFailed, CommandTimedOut, HostLost, HostUnreachable, HostUnfit):
        return None
    return said.stdout.strip()


def clock_of_source(context: Context) -> Offset:
    """Compare the source's clock with this machine's."""
    return clock.of_server(context.session)


def clock_of_target(context: Context) -> Offset:
    """Compare the clock of the target's host with this machine's."""
    return clock.of_host(context.need(look).host)


def judge_clocks(context: Context) -> Iterator[PreflightRefused]:
    """Compare the clocks of source and target, as far as they are known."""
    found = {
        f"node {context.plan.source}": context.of(clock_of_source),
        f"the host of node {context.plan.target}": context.of(clock_of_target),
    }
    yield from differing_clocks({where: one for where, one in found.items() if one is not None})


def differing_clocks(offsets: Mapping[str, Offset]) -> Iterator[PreflightRefused]:
    """Find clocks that differ for certain by more than `clock.ERROR_S`, in s.

    Two clocks may differ too much from each other, though each is close enough to this machine's.
    """
    reported: set[str] = set()
    for where, offset in offsets.items():
        if abs(offset.ahead) - offset.uncertainty > clock.ERROR_S:
            reported.add(where)
            yield _skewed(where, offset.ahead, "the clock of shardctl's machine")
    rest = sorted((o.ahead, o.uncertainty, w) for w, o in offsets.items() if w not in reported)
    if len(rest) > 1:
        slow, fast = rest[0], rest[-1]
        if fast[0] - slow[0] - fast[1] - slow[1] > clock.ERROR_S:
            yield _skewed(fast[2], fast[0] - slow[0], f"that of {slow[2]}")


def _skewed(where: str, ahead: float, reference: str) -> PreflightRefused:
    direction = "ahead of" if ahead > 0 else "behind"
    return PreflightRefused(
        where,
        "clock_skew",
        f"its clock is {abs(ahead):.2f} s {direction} {reference}; a move allows at most "
        f"{clock.ERROR_S:g} s",
        hint="synchronise the clocks (chrony, systemd-timesyncd): ids contain the time",
    )
