"""The target's data directory: what is in it, and the free space on its disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from shardctl.hosts import accounts, files, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.meter import listed
from shardctl.moves.preflight import fleet, occupant, server, target
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries

Kind = Literal["absent", "empty", "server", "other", "file", "link", "mount", "closed"]
"""`server`: it has a PG_VERSION; `closed`: its user may not enter or read it."""

LEFTOVER = ".clone"
"""The suffix of a clone's working directory, which is beside the data directory."""

_SECONDS = 30.0
_SHARE = 0.1
_MB = 1024 * 1024
_C = {"LC_ALL": "C"}
_NOT_RUNNING = 3  # exit code of pg_ctl status
_SYSTEM = re.compile(r"^Database system identifier:\s+(\d+)$", re.MULTILINE)
_STATE = re.compile(r"^Database cluster state:\s+(.+)$", re.MULTILINE)
_STANDBYS = ("in archive recovery", "shut down in recovery")


@dataclass(frozen=True, slots=True)
class Directory:
    """The data directory as it is; `seen` is its deepest parent directory that exists."""

    kind: Kind
    leftover: bool
    """Whether a clone's working directory is beside it."""
    seen: str
    free_bytes: int | None
    holds: tuple[str, ...]
    system: str | None = None
    """The system identifier of its server, where that can be read."""
    running: bool = False
    """Whether a server runs in it, on any port."""
    state: str | None = None
    """The last state of its server, as pg_controldata names it."""


def look(context: Context) -> Directory:
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
    machine, programs = context.need(target.look), context.of(target.programs)
    accounts.changes_folder(machine.host, path.parent, machine.account)
    return look_at(machine.host, path, programs=programs, account=machine.account)


def look_at(host: Host, path: Path, *, programs: Binaries | None, account: str | None) -> Directory:
    """Look at a data directory as `account`, who runs its server; None is the current user.

    Without programs, the owner of a stopped server's directory stays unknown. Raises
    CommandFailed, CommandTimedOut.
    """
    argv = scripts.argv("directory", "of_clone", str(path), LEFTOVER)
    lines = host.run(argv, user=account, timeout=_SECONDS).stdout.splitlines()
    kind, leftover, seen, disk, *holds = lines
    if kind not in get_args(Kind):  # pragma: no cover  # the script prints no other
        raise AssertionError(kind)
    measured = files.of_df(disk)
    system, state, running = None, None, False
    if kind == "server" and programs is not None:
        running = _runs(host, path, programs, account)
        system, state = _control_data(host, path, programs, account)
    return Directory(
        cast("Kind", kind),
        bool(leftover),
        seen,
        measured[1] if measured else None,
        tuple(holds),
        system,
        running,
        state,
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is in the way of a clone, and a disk without room for it."""
    place, node = context.need(look), context.target
    yield from in_the_way(context)
    source = context.of(server.look)
    needed = needed_bytes(source) if source is not None else None
    if source is None or needed is None or place.free_bytes is None or place.free_bytes >= needed:
        return
    yield TargetUnfit(
        node.name,
        "disk",
        f"{place.seen} has {place.free_bytes / _MB:,.0f} MB free, but a clone needs "
        f"{needed / _MB:,.0f} MB: the source's {(source.bytes or 0) / _MB:,.0f} MB, 10 % more, "
        f"and max_wal_size = {source.settings['max_wal_size']} MB",
        hint="free space there, or give the node a data_directory on a larger disk",
    )


def needed_bytes(source: Server) -> int | None:
    """Return the bytes that a clone needs: the data, 10 % more, and the WAL that is kept."""
    if source.bytes is None:
        return None
    return int(source.bytes * (1 + _SHARE)) + source.number("max_wal_size") * _MB


def notes(context: Context) -> Iterator[str]:
    """Report what happens to the files in the clone's place."""
    node, there = context.target, context.of(occupant.look)
    if there is not None:
        old = f" ({there.retired} retired schemas)" if there.retired else ""
        yield (
            f"node {node.name}: shardctl stops its empty server and moves the data directory "
            f"aside{old}"
        )
    elif context.need(look).kind == "server":
        yield (
            f"node {node.name}: shardctl moves {node.data_directory} aside, which has an old clone "
            "of this cluster"
        )


def in_the_way(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is in the way of a clone.

    A stopped clone of one of this cluster's servers may be moved aside, unless it may contain the
    only copies of unconfirmed moves. The check `occupant` looks at a running server.
    """
    node, place, account = context.target, context.need(look), context.need(target.look).account
    path = node.data_directory
    name = node.name
    elsewhere = "give the node another data_directory"
    if place.leftover:
        yield TargetUnfit(
            name,
            "leftover_clone",
            f"{path}{LEFTOVER} is left over from a clone that did not finish",
            hint="check what is in it, then remove it",
        )
    if place.kind == "closed":
        yield TargetUnfit(
            name,
            "directory_closed",
            f"{path}: {account or 'the current user'} may not enter {place.seen}",
            hint=f"allow that user to enter it (chmod), or {elsewhere}",
        )
    elif place.kind in ("file", "link", "mount"):
        what = {"file": "not a directory", "link": "a symbolic link", "mount": "a mount point"}
        yield TargetUnfit(
            name,
            "directory_unfit",
            f"{path} is {what[place.kind]}, and shardctl renames a complete clone to this path",
            hint=f"{elsewhere}, such as one below it" if place.kind == "mount" else elsewhere,
        )
    elif place.kind == "other":
        yield TargetUnfit(
            name,
            "directory_not_empty",
            f"{path} is not empty, and not a PostgreSQL data directory: {listed(place.holds)}",
            hint=f"move its contents away, or {elsewhere}",
        )
    elif place.kind == "server" and context.of(occupant.look) is None:
        yield from _stopped(context, place, elsewhere)


def _stopped(context: Context, place: Directory, elsewhere: str) -> Iterator[TargetUnfit]:
    """Refuse a server's directory that may contain data which exists nowhere else."""
    node, path, unproven = context.target, context.target.data_directory, fleet.unproven(context)
    if place.running:
        yield TargetUnfit(
            node.name,
            "directory_in_use",
            f"a server runs in {path}, on another port than {node.port}, which the topology names",
            hint="correct the node's port in the topology, or stop that server",
        )
    elif place.system is None or place.system not in fleet.systems(context):
        yield TargetUnfit(
            node.name,
            "directory_foreign",
            f"{path} has the data of a stopped server that is not a clone of this cluster",
            hint="start it, so that shardctl can check it; or move it away, or " + elsewhere,
        )
    elif place.state in _STANDBYS:
        yield TargetUnfit(
            node.name,
            "directory_standby",
            f"{path} has the data of a stopped standby ({place.state})",
            hint="check which server it is a standby of; if it is not needed, remove it, or "
            + elsewhere,
        )
    elif unproven:
        yield TargetUnfit(
            node.name,
            "target_has_unproven_copies",
            f"{path} has the data of a stopped server, perhaps with the only copies of unconfirmed "
            f"moves: {listed(unproven)}",
            hint="start it and check that no rows are missing elsewhere, then run `shardctl prune "
            "--accept-unconfirmed`; or move it away, or " + elsewhere,
        )


def _runs(host: Host, path: Path, programs: Binaries, account: str | None) -> bool:
    argv = [programs.program("pg_ctl"), "status", "-D", str(path)]
    try:
        host.run(argv, user=account, env=_C, timeout=_SECONDS)
    except CommandFailed as error:
        if error.completed.code == _NOT_RUNNING:
            return False
        raise
    return True


def _control_data(
    host: Host, path: Path, programs: Binaries, account: str | None
) -> tuple[str | None, str | None]:
    """Read the server's system identifier and last state."""
    argv = [programs.program("pg_controldata"), "-D", str(path)]
    try:
        said = host.run(argv, user=account, env=_C, timeout=_SECONDS).stdout
    except CommandFailed:  # of another version, or damaged: it counts as unknown
        return None, None
    system, state = _SYSTEM.search(said), _STATE.search(said)
    return system[1] if system else None, state[1] if state else None
