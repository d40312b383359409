"""Preflight of the target: its host and programs, what is in its place, its way to the source."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files
from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostLost, HostUnreachable
from shardctl.hosts.reach import HostUnfit, host_of
from shardctl.moves import distance
from shardctl.moves import plan as planning
from shardctl.moves.preflight import clocks, control, copy, debian, libraries, login, tls
from shardctl.moves.preflight import directory as directories
from shardctl.moves.preflight import occupant as occupants
from shardctl.moves.preflight.replication import STANDBY_CRITICAL, lock_table
from shardctl.moves.refusals import PreflightRefused, TargetUnfit, collected
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from shardctl.checks.clock import Offset
    from shardctl.hosts.host import Host
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.debian import Debian
    from shardctl.moves.preflight.directory import Directory
    from shardctl.moves.preflight.occupant import Occupant
    from shardctl.moves.preflight.source import Source
    from shardctl.moves.preflight.tls import Tls
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node, Topology

PROGRAMS = ("pg_basebackup", "pg_controldata")
"""What a clone needs beside a server's own programs."""

_SECONDS = 30.0
_SHARE = 0.1
_MB = 1024 * 1024


@dataclass(slots=True)
class Target:
    """The target as it is; None is what could not be found out, and `problems` say why."""

    problems: list[ShardctlError]
    account: str | None = None
    """Who runs its server; None is oneself."""
    programs: Binaries | None = None
    directory: Directory | None = None
    occupant: Occupant | None = None
    same_place: bool | None = None
    """Whether the occupant's data directory is the topology's."""
    clock: Offset | None = None
    distance_ms: float = 0.0
    """The way to its machine, a round trip."""
    libc: tuple[str | None, str | None] = (None, None)
    """What the source's host has, and the target's."""
    lacking: Sequence[str] | None = ()
    """Libraries that its server would load and its host does not have."""
    tls: Tls | None = None
    debian: Debian | None = None
    """None where the host has none of Debian's tools."""
    login_untried: str | None = None
    """Why the replication login was not tried."""


def look(topology: Topology, plan: MovePlan, *, purpose: str) -> Target:
    """Look at the target, its host and its address; what goes wrong is in the result."""
    node = topology.nodes[plan.target]
    target = Target([])
    with collected(target.problems):
        target.occupant = occupants.look(topology, node, purpose=purpose)
        target.distance_ms = distance.of_machine(node)
    if node.data_directory is None:
        target.problems.append(
            TargetUnfit(
                node.name,
                "no_data_directory",
                "it has no data_directory, so there is no place for a clone",
                hint="write one into the topology: an absolute path on the node's host",
            )
        )
    with collected(target.problems):
        host = host_of(node)
        with _named(node):
            target.account = accounts.account_on(host, node.os_user)
        with collected(target.problems), _named(node):
            target.programs = _programs(host, node, target.account)
        with collected(target.problems), _named(node):
            control.require(host, node)
        with collected(target.problems), _named(node):
            target.debian = debian.look(host, node, target.account)
        if node.data_directory is not None:
            with collected(target.problems), _named(node):
                _look_at_place(host, node.data_directory, target)
        with collected(target.problems):
            target.login_untried = login.try_replication(
                topology,
                plan,
                host,
                programs=target.programs,
                account=target.account,
                purpose=purpose,
            )
        with collected(target.problems), _named(node):
            copy.try_repmgr(
                topology,
                plan,
                host,
                programs=target.programs,
                account=target.account,
                purpose=purpose,
            )
        with collected(target.problems), _named(node):
            target.clock = clocks.of_host(host)
        target.libc = _libc(topology.nodes[plan.source]), _libc(node)
    return target


def look_at_files(topology: Topology, plan: MovePlan, target: Target, source: Source) -> None:
    """Look on the target's host for what its server will load and read, as the source does."""
    if target.programs is None:  # why, is told
        return
    node = topology.nodes[plan.target]
    with collected(target.problems), _named(node):
        target.lacking = libraries.look(
            node, source.settings, target.programs, host_of(node), target.account
        )
    if source.tls is not None:
        with collected(target.problems), _named(node):
            target.tls = tls.look(node, source.tls, host_of(node), target.account)


def judge(
    topology: Topology,
    plan: MovePlan,
    target: Target,
    source: Source | None,
    *,
    systems: Collection[str],
    unproven: Sequence[str],
) -> Iterator[ShardctlError]:
    """Find what keeps a clone from being made there; without the source, what can be told.

    `systems` are the system identifiers of the cluster's servers, `unproven` the moves from
    here that no comparison has confirmed.
    """
    node = topology.nodes[plan.target]
    yield from target.problems
    if target.occupant is not None:
        yield from occupants.judge(
            node, target.occupant, user=topology.database.user, same_place=target.same_place
        )
    if target.directory is not None:
        yield from directories.judge(
            node,
            target.directory,
            systems=systems,
            unproven=unproven,
            account=target.account,
            occupied=target.occupant is not None,
        )
    if source is not None:
        yield from _version(node, target, source)
        yield from libraries.judge(node, target.lacking)
        yield from debian.judge(node, target.debian, target.programs, source)
        yield from _settings(topology, plan, source)
        yield from _disk(node, target.directory, source)
        yield from _collations(node, target, source)


def notes(topology: Topology, plan: MovePlan, target: Target) -> Iterator[str]:
    """Say what the operator should know of the target beside refusals."""
    node = topology.nodes[plan.target]
    yield f"node {node.name} will have no standby and no backup yet"
    if target.occupant is not None:
        old = f" ({target.occupant.retired} retired schemas)" if target.occupant.retired else ""
        yield f"the empty server of node {node.name} is stopped, and its data directory moved{old}"
    elif target.directory is not None and target.directory.kind == "server":
        yield f"{node.data_directory} is moved aside: it has an old clone of this cluster"
    if target.login_untried is not None:
        yield f"the replication login from node {node.name} was not tried: {target.login_untried}"
    if target.lacking is None:
        yield f"it was not looked whether node {node.name} has what {libraries.PRELOADED} names"
    if target.tls is not None:
        yield from tls.notes(node, target.tls)
    if None in target.libc:
        yield "the C libraries of source and target were not compared: collations may differ"


def needed_bytes(source: Source) -> int | None:
    """Say how much room a clone needs: the data, a tenth of it, and the WAL that is kept."""
    if source.bytes is None:
        return None
    return int(source.bytes * (1 + _SHARE)) + source.number("max_wal_size") * _MB


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """Give errors that do not say where the node's name."""
    try:
        yield
    except PreflightRefused:
        raise
    except ShardctlError as error:
        raise TargetUnfit(node.name, "host", error.message, hint=error.hint) from error


def _look_at_place(host: Host, path: Path, target: Target) -> None:
    account = target.account
    target.directory = directories.look(host, path, programs=target.programs, account=account)
    there = target.occupant.data_directory if target.occupant else None
    if there is not None:
        target.same_place = files.place_of(host, path, user=account) == files.place_of(
            host, there, user=account
        )


def _programs(host: Host, node: Node, account: str | None) -> Binaries:
    """Find the programs that the node runs with; raises TargetUnfit where some are missing."""
    found = binaries.find(node.bin_directory, account=account, host=host)
    for name in PROGRAMS:
        try:
            host.run([found.program(name), "--version"], user=account, timeout=_SECONDS)
        except CommandFailed as error:
            raise TargetUnfit(
                node.name,
                "programs",
                f"{found.directory} has no {name} that runs, which a clone needs",
                hint="install PostgreSQL's client and server programs there, or name another "
                "bin_directory for the node",
            ) from error
    return found


def _libc(node: Node) -> str | None:
    """Ask for a host's C library, whose collations order indexes; None where nobody tells."""
    try:
        said = host_of(node).run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS)
    except (CommandFailed, CommandTimedOut, HostLost, HostUnreachable, HostUnfit):
        return None
    return said.stdout.strip()


def _version(node: Node, target: Target, source: Source) -> Iterator[TargetUnfit]:
    if target.programs is None or target.programs.major == source.major:
        return
    fitting = binaries.of_major(source.major, host_of(node))
    yield TargetUnfit(
        node.name,
        "version",
        f"{target.programs.directory} has PostgreSQL {target.programs.major}, and the source is "
        f"{source.version}",
        hint=f"give node {node.name} bin_directory: {fitting.directory}"
        if fitting
        else f"install PostgreSQL {source.major} there, and name it as bin_directory of the node",
    )


def _settings(topology: Topology, plan: MovePlan, source: Source) -> Iterator[PreflightRefused]:
    """Compare what the clone will run with; what its node does not set is the source's."""
    node = topology.nodes[plan.target]
    given = {name.lower(): value for name, value in node.settings.items()}
    wanted: dict[str, str] = {}
    for name in STANDBY_CRITICAL:
        wanted[name] = given.get(name, source.settings[name])
        if not wanted[name].isdecimal() or int(wanted[name]) < source.number(name):
            yield TargetUnfit(
                node.name,
                "settings",
                f"settings: {name} = {wanted[name]}, and the source has {source.settings[name]}: "
                "a standby with less does not start",
                hint=f"set it to {source.settings[name]} or more, or remove it: it is cloned then",
            )
            wanted[name] = source.settings[name]
    if given.get("wal_level") == "minimal":
        yield TargetUnfit(
            node.name,
            "settings",
            "settings: wal_level = minimal, with which no standby starts",
            hint="remove it: it is cloned then",
        )
    renamed = len(plan.schemas) + len(planning.leaving(topology, plan))
    # Dropping a trigger locks it, its table, and what they depend on.
    yield from lock_table(node.name, wanted, renamed + 3 * source.tables, "the claim")


def _disk(node: Node, place: Directory | None, source: Source) -> Iterator[TargetUnfit]:
    needed = needed_bytes(source)
    if place is None or place.free_bytes is None or needed is None or place.free_bytes >= needed:
        return
    yield TargetUnfit(
        node.name,
        "disk",
        f"{place.seen} has {place.free_bytes / _MB:,.0f} MB free, and a clone needs "
        f"{needed / _MB:,.0f} MB: the source's {(source.bytes or 0) / _MB:,.0f} MB, a tenth of "
        f"that, and max_wal_size = {source.settings['max_wal_size']} MB",
        hint="make room there, or give the node a data_directory on a larger disk",
    )


def _collations(node: Node, target: Target, source: Source) -> Iterator[TargetUnfit]:
    here, there = target.libc
    if None in (here, there) or here == there or not source.contents.collations:
        return
    yield TargetUnfit(
        node.name,
        "libc",
        f"its host has {there}, and the source's has {here}: they may order texts otherwise, and "
        "indexes would be wrong there",
        hint="bring both hosts to one version of the system first",
    )
