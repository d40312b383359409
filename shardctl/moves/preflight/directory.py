"""Preflight of the place for a clone: what stands in the target's data directory, and its disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from shardctl.hosts.host import CommandFailed
from shardctl.moves.refusals import TargetUnfit, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

Kind = Literal["absent", "empty", "server", "other", "file", "link", "mount", "closed"]
"""`server`: there is a PG_VERSION; `closed`: its user may not enter or read it."""

LEFTOVER = ".clone"
"""What the name of a clone's working directory has at its end, beside the data directory."""

_SECONDS = 30.0
_C = {"LC_ALL": "C"}
_NOT_RUNNING = 3  # what pg_ctl status ends with then
_DF = re.compile(r"\s\d+\s+\d+\s+(\d+)\s+\d+%\s")
_SYSTEM = re.compile(r"^Database system identifier:\s+(\d+)$", re.MULTILINE)
_STATE = re.compile(r"^Database cluster state:\s+(.+)$", re.MULTILINE)
_STANDBYS = ("in archive recovery", "shut down in recovery")
# What stands in a directory that may not be entered looks as if it were not there.
_LOOK = f"""
dir=$1 seen=$1 leftover=
until [ -e "$seen" ] || [ -L "$seen" ]; do seen=$(dirname -- "$seen"); done
if [ -d "$seen" ] && [ ! -x "$seen" ]; then kind=closed
elif [ "$seen" != "$dir" ]; then kind=absent
elif [ -L "$dir" ]; then kind=link
elif [ ! -d "$dir" ]; then kind=file
elif [ ! -r "$dir" ]; then kind=closed
elif [ "$(stat -c %d "$dir")" != "$(stat -c %d "$dir/..")" ]; then kind=mount
elif [ -e "$dir/PG_VERSION" ]; then kind=server
elif [ -n "$(ls -A "$dir")" ]; then kind=other
else kind=empty
fi
[ ! -e "$dir{LEFTOVER}" ] || leftover=yes
printf '%s\\n' "$kind" "$leftover" "$seen" "$(df -P -k "$seen" | tail -n 1)"
[ "$kind" != other ] || ls -A "$dir"
"""


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


def look(host: Host, path: Path, *, programs: Binaries | None, account: str | None) -> Directory:
    """Look at a data directory as `account`, who is to run its server; None is oneself.

    Without programs nobody tells whose a stopped server's directory is. Raises CommandFailed,
    CommandTimedOut.
    """
    argv = ["sh", "-c", _LOOK, "sh", str(path)]
    lines = host.run(argv, user=account, env=_C, timeout=_SECONDS).stdout.splitlines()
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


def judge(
    node: Node,
    place: Directory,
    *,
    systems: Collection[str],
    unproven: Sequence[str],
    account: str | None,
    occupied: bool,
) -> Iterator[TargetUnfit]:
    """Find what is in the way of a clone.

    `systems` are the identifiers of this cluster's servers; a stopped clone of one may be
    moved aside, unless `unproven` names moves whose only copies may be in it. `occupied` when a
    server at the node's address was found to be of this place.
    """
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
    elif place.kind == "server" and not occupied:
        yield from _stopped(node, place, systems, unproven, elsewhere)


def _stopped(
    node: Node,
    place: Directory,
    systems: Collection[str],
    unproven: Sequence[str],
    elsewhere: str,
) -> Iterator[TargetUnfit]:
    """Refuse a server's directory of which nobody can tell that nothing in it is missed."""
    path = node.data_directory
    if place.running:
        yield TargetUnfit(
            node.name,
            "directory_in_use",
            f"a server runs in {path}, on another port than the topology's {node.port}",
            hint="write its port into the topology, or stop it",
        )
    elif place.system is None or place.system not in systems:
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
