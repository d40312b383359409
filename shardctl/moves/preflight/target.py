"""The target's machine: user, programs, libraries, clock, commands and directory of its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks import clock, hosts
from shardctl.hosts import accounts, files, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.moves import sub_step
from shardctl.moves.plan import PreflightRefused, TargetUnfit
from shardctl.moves.preflight import schemas, server, shards
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.clock import Offset
    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries

LEFTOVER, TRIAL = ".clone", ".trial"
"""The suffixes of directories of a clone, and of a trial, which are beside the data directory."""

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


def measure(context: Context) -> float:
    """Measure a round trip to the target, or to its machine where it has no server; in ms."""
    if context.streams:
        return sub_step.shortest_ms(lambda: context.member.execute("SELECT 1"))
    context.need(look)  # an unreachable machine is not measured
    return sub_step.of_machine(context.target)


def programs(context: Context) -> Binaries:
    """Find the node's PostgreSQL programs; raises what `binaries.find` raises."""
    node, machine = context.target, context.need(look)
    return binaries.find(node.bin_directory, account=machine.account, host=machine.host)


def judge_version(context: Context) -> Iterator[TargetUnfit]:
    """Refuse programs of another major version than the source's."""
    node, there, source = context.target, context.need(programs), context.need(server.look)
    if there.major == source.major:
        return
    yield TargetUnfit(
        node.name,
        "version",
        f"expected PostgreSQL {source.major} (the source has {source.version}), found "
        f"{there.major} in {there.directory}",
        hint=f"install PostgreSQL {source.major} there, and set the node's bin_directory; a newer "
        "version is for a member, which `shardctl init` makes of a running node: to these, shards "
        "are streamed",
    )


@dataclass(frozen=True, slots=True)
class Directory:
    """The data directory as it is; `seen` is its deepest parent directory that exists.

    `kind` is absent, empty, other, file, link, mount or closed: its user may not enter or read it.
    """

    kind: str
    leftover: bool
    """Whether a clone's working directory is beside it."""
    seen: str
    free_bytes: int | None
    holds: tuple[str, ...]


def look_at_directory(context: Context) -> Directory:
    """Look at the target's data directory; raises TargetUnfit where the topology names none.

    And folder_unsafe where a clone could not be put there safely.
    """
    path = context.target.data_directory
    if path is None:
        raise TargetUnfit(
            context.target.name,
            "no_data_directory",
            "it has no data_directory, so nothing can be cloned onto it",
            hint="add data_directory to the node in the topology: an absolute path on its host",
        )
    machine = context.need(look)
    accounts.changes_folder(machine.host, path.parent, machine.account)
    argv = scripts.argv("directory", "of_clone", str(path), LEFTOVER)
    lines = machine.host.run(argv, user=machine.account, timeout=_SECONDS).stdout.splitlines()
    kind, leftover, seen, disk, *holds = lines
    return Directory(kind, bool(leftover), seen, files.bytes_of(disk)[1], tuple(holds))


def judge_directory(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is neither absent nor empty, and a disk without room."""
    node, place = context.target, context.need(look_at_directory)
    account = context.need(look).account or "the current user"
    unfit = {
        "closed": ("directory_closed", f"may not be entered by {account} ({place.seen})"),
        "file": ("directory_unfit", "is not a directory"),
        "link": ("directory_unfit", "is a symbolic link, which no complete clone can replace"),
        "mount": ("directory_unfit", "is a mount point, which no complete clone can replace"),
        "other": ("directory_not_empty", f"is not empty: {listed(place.holds)}"),
    }
    if place.leftover:
        yield TargetUnfit(
            node.name,
            "leftover_clone",
            f"{node.data_directory}{LEFTOVER} is left over from a clone that did not finish",
            hint="check what is in it, then remove it, unless a move to this node is unfinished",
        )
    if place.kind in unfit:
        code, what = unfit[place.kind]
        yield TargetUnfit(
            node.name,
            code,
            f"{node.data_directory} {what}",
            hint="unless a move to this node is unfinished, stop a server that uses it, move its "
            "contents away and let its user enter it (chmod); or give the node another "
            "data_directory, such as one below it",
        )
    yield from shards.judge_target(context, place.seen, place.free_bytes, context.need(server.look))


def control(context: Context) -> None:
    """Run the operator's status command; raises TargetUnfit where its answer is unclear."""
    machine = context.need(look)
    why = hosts.why_no_status(machine.host, context.target)
    if why is not None:
        raise TargetUnfit(
            context.target.name,
            "control",
            why,
            hint="correct `control` of the node: `sh -c` runs its commands on its host as the "
            "user who logs in there, without a terminal for a password",
        )


def libc(context: Context) -> None:
    """See that the host's C library sorts as the source's did; raises TargetUnfit."""
    machine, known = context.need(look), context.need(schemas.look_at_collations)
    try:
        said = machine.host.run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS).stdout.strip()
    except CommandFailed:
        said = "no glibc"
    if differing := [f"{name} ({there})" for name, there in known if said != f"glibc {there}"]:
        raise TargetUnfit(
            context.target.name,
            "libc",
            f"its host has {said}, and may sort otherwise than collations of node "
            f"{context.plan.source}, which corrupts indexes: {listed(differing)}",
            hint="install the same version of the operating system on both hosts first",
        )


def clock_of_source(context: Context) -> Offset:
    """Compare the source's clock with this machine's."""
    return clock.of_server(context.session)


def clock_of_target(context: Context) -> Offset:
    """Compare the clock of the target, or of its host where it has no server, with this one."""
    if context.streams:
        return clock.of_server(context.member)
    return clock.of_host(context.need(look).host)


def judge_clocks(context: Context) -> Iterator[PreflightRefused]:
    """Refuse clocks of source and target that differ for certain from this machine's."""
    found = {
        f"node {context.plan.source}": context.of(clock_of_source),
        f"node {context.plan.target}": context.of(clock_of_target),
    }
    for where, offset in found.items():
        if offset is not None and abs(offset.ahead) - offset.uncertainty > clock.ERROR_S:
            yield PreflightRefused(
                where,
                "clock_skew",
                f"its clock is {abs(offset.ahead):.2f} s "
                f"{'ahead of' if offset.ahead > 0 else 'behind'} the clock of shardctl's machine; "
                f"a move allows at most {clock.ERROR_S:g} s",
                hint="synchronise the clocks (chrony, systemd-timesyncd): ids contain the time",
            )


def look_for_modules(context: Context) -> bool:
    """See that the host has the libraries without which applications' statements would fail.

    Returns whether it is known where libraries are. Raises TargetUnfit.
    """
    needed, settings = (
        context.need(schemas.look_at_copied).modules,
        context.need(server.look).settings,
    )
    there, machine = context.need(programs), context.need(look)
    # The clone gets the source's settings where the node has none of its own.
    own = {name.lower(): value for name, value in context.target.settings.items()}
    path = {**settings, **own}.get("dynamic_library_path", "$libdir")
    argv = scripts.argv("libraries", str(there.directory), path, *needed)
    said = machine.host.run(argv, user=machine.account, timeout=_SECONDS).stdout.splitlines()
    if lacking := [f"{file} ({needed[file]})" for file in said[1:]]:
        raise TargetUnfit(
            context.target.name,
            "extension_libraries",
            f"its host lacks libraries that functions of node {context.plan.source} need: "
            f"{listed(lacking)}; statements that use them would fail after the cutover",
            hint="install the extensions' packages there, or drop these objects on the source",
        )
    return bool(said) or not needed


def note_modules(context: Context) -> Iterator[str]:
    """Report that the files could not be checked."""
    if not context.need(look_for_modules):
        yield f"node {context.target.name}: not checked: whether it has the extensions' libraries"
