"""The place for a clone: what is in the target's data directory, and room on its disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from shardctl.hosts import scripts
from shardctl.hosts.host import CommandFailed
from shardctl.moves.preflight import fleet, occupant, server, target
from shardctl.moves.refusals import TargetUnfit, listed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries

Kind = Literal["absent", "empty", "server", "other", "file", "link", "mount", "closed"]
"""`server`: there is a PG_VERSION; `closed`: its user may not enter or read it."""

LEFTOVER = ".clone"
"""What the name of a clone's working directory has at its end, beside the data directory."""

_SECONDS = 30.0
_SHARE = 0.1
_MB = 1024 * 1024
_C = {"LC_ALL": "C"}
_NOT_RUNNING = 3  # what pg_ctl status ends with then
_DF = re.compile(r"\s\d+\s+\d+\s+(\d+)\s+\d+%\s")
_SYSTEM = re.compile(r"^Database system identifier:\s+(\d+)$", re.MULTILINE)
_STATE = re.compile(r"^Database cluster state:\s+(.+)$", re.MULTILINE)
_STANDBYS = ("in archive recovery", "shut down in recovery")


@dataclass(frozen=True, slots=True)
class Directory:
    """The place as it is; `seen` is the deepest directory on the way to it that is there."""

    kind: Kind
    leftover: bool
    """Whether the working directory of a clone is beside it."""
    seen: str
    free_bytes: int | None
    holds: tuple[str, ...]
    system: str | None = None
    """The system identifier of the server whose it is, where one can tell."""
    running: bool = False
    """Whether a server of it runs, on whichever port."""
    state: str | None = None
    """The state in which its server was last, as pg_controldata names it."""


def look(context: Context) -> Directory:
    """Look at the target's data directory; raises TargetUnfit where the topology names none."""
    path = context.target.data_directory
    if path is None:
        raise TargetUnfit(
            context.target.name,
            "no_data_directory",
            "it has no data_directory, so there is no place for a clone",
            hint="write one into the topology: an absolute path on the node's host",
        )
    machine, programs = context.need(target.look), context.of(target.programs)
    return look_at(machine.host, path, programs=programs, account=machine.account)


def look_at(host: Host, path: Path, *, programs: Binaries | None, account: str | None) -> Directory:
    """Look at a data directory as `account`, who is to run its server; None is oneself.

    Without programs nobody tells whose a stopped server's directory is. Raises CommandFailed,
    CommandTimedOut.
    """
    argv = scripts.argv("directory", "of_clone", str(path), LEFTOVER)
    lines = host.run(argv, user=account, timeout=_SECONDS).stdout.splitlines()
    kind, leftover, seen, disk, *holds = lines
    if kind not in get_args(Kind):  # pragma: no cover  # the script prints no other
        raise AssertionError(kind)
    free = _DF.search(disk)
    system, state, running = None, None, False
    if kind == "server" and programs is not None:
        running = _runs(host, path, programs, account)
        system, state = _control_data(host, path, programs, account)
    return Directory(
        cast("Kind", kind),
        bool(leftover),
        seen,
        int(free[1]) * 1024 if free else None,
        tuple(holds),
        system,
        running,
        state,
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Find what is in the way of a clone, and a disk without room for it."""
    place, node = context.need(look), context.target
    yield from in_the_way(context)
    source = context.of(server.look)
    needed = needed_bytes(source) if source is not None else None
    if source is None or needed is None or place.free_bytes is None or place.free_bytes >= needed:
        return
    yield TargetUnfit(
        node.name,
        "disk",
        f"{place.seen} has {place.free_bytes / _MB:,.0f} MB free, and a clone needs "
        f"{needed / _MB:,.0f} MB: the source's {(source.bytes or 0) / _MB:,.0f} MB, a tenth of "
        f"that, and max_wal_size = {source.settings['max_wal_size']} MB",
        hint="make room there, or give the node a data_directory on a larger disk",
    )


def needed_bytes(source: Server) -> int | None:
    """Say how much room a clone needs: the data, a tenth of it, and the WAL that is kept."""
    if source.bytes is None:
        return None
    return int(source.bytes * (1 + _SHARE)) + source.number("max_wal_size") * _MB


def notes(context: Context) -> Iterator[str]:
    """Say what becomes of what is in the clone's place."""
    node, there = context.target, context.of(occupant.look)
    if there is not None:
        old = f" ({there.retired} retired schemas)" if there.retired else ""
        yield f"the empty server of node {node.name} is stopped, and its data directory moved{old}"
    elif context.need(look).kind == "server":
        yield f"{node.data_directory} is moved aside: it has an old clone of this cluster"


def in_the_way(context: Context) -> Iterator[TargetUnfit]:
    """Find what is in the way of a clone.

    A stopped clone of one of this cluster's servers may be moved aside, unless the only copies
    of unconfirmed moves may be in it. A server that runs there was looked at by itself.
    """
    node, place, account = context.target, context.need(look), context.need(target.look).account
    path = node.data_directory
    name = node.name
    elsewhere = "give the node another data_directory"
    if place.leftover:
        yield TargetUnfit(
            name,
            "leftover_clone",
            f"{path}{LEFTOVER} is there, which a clone that ended too early has left",
            hint="see what is in it, and remove it",
        )
    if place.kind == "closed":
        yield TargetUnfit(
            name,
            "directory_closed",
            f"{path}: {account or 'the user of shardctl'} may not go through {place.seen}",
            hint=f"let that user pass there (chmod), or {elsewhere}",
        )
    elif place.kind in ("file", "link", "mount"):
        what = {"file": "no directory", "link": "a symbolic link", "mount": "a mount point"}
        yield TargetUnfit(
            name,
            "directory_unfit",
            f"{path} is {what[place.kind]}, and a clone takes its name when it is whole",
            hint=f"{elsewhere}, such as one below it" if place.kind == "mount" else elsewhere,
        )
    elif place.kind == "other":
        yield TargetUnfit(
            name,
            "directory_not_empty",
            f"{path} is not empty, and no server's: {listed(place.holds)}",
            hint=f"move away what is in it, or {elsewhere}",
        )
    elif place.kind == "server" and context.of(occupant.look) is None:
        yield from _stopped(context, place, elsewhere)


def _stopped(context: Context, place: Directory, elsewhere: str) -> Iterator[TargetUnfit]:
    """Refuse a server's directory of which nobody can tell that nothing in it is missed."""
    node, path, unproven = context.target, context.target.data_directory, fleet.unproven(context)
    if place.running:
        yield TargetUnfit(
            node.name,
            "directory_in_use",
            f"a server runs in {path}, on another port than the topology's {node.port}",
            hint="write its port into the topology, or stop it",
        )
    elif place.system is None or place.system not in fleet.systems(context):
        yield TargetUnfit(
            node.name,
            "directory_foreign",
            f"{path} has a stopped server's data, and it is no clone of this cluster's servers",
            hint="start it, so that it can be looked into; or move it away, or " + elsewhere,
        )
    elif place.state in _STANDBYS:
        yield TargetUnfit(
            node.name,
            "directory_standby",
            f"{path} has a stopped standby's data ({place.state})",
            hint="see whose standby it is; if nobody's, remove it, or " + elsewhere,
        )
    elif unproven:
        yield TargetUnfit(
            node.name,
            "target_has_unproven_copies",
            f"{path} has a stopped server's data, and what unconfirmed moves have left there may "
            f"be in it: {listed(unproven)}",
            hint="start it and see that nothing is missed, then `shardctl prune "
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
    """Read whose server it is, and in which state it was last."""
    argv = [programs.program("pg_controldata"), "-D", str(path)]
    try:
        said = host.run(argv, user=account, env=_C, timeout=_SECONDS).stdout
    except CommandFailed:  # of another version, or damaged: then it is nobody's that we know
        return None, None
    system, state = _SYSTEM.search(said), _STATE.search(said)
    return system[1] if system else None, state[1] if state else None
