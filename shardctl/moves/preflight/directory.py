"""The target's data directory: what is in it, and the free space on its disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from shardctl.hosts import accounts, files, scripts
from shardctl.meter import listed
from shardctl.moves.plan import TargetUnfit
from shardctl.moves.preflight import server, target, wal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.subject import Context

Kind = Literal["absent", "empty", "other", "file", "link", "mount", "closed"]
"""`closed`: its user may not enter or read it."""

LEFTOVER = ".clone"
"""The suffix of a clone's working directory, which is beside the data directory."""

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Directory:
    """The data directory as it is; `seen` is its deepest parent directory that exists."""

    kind: Kind
    leftover: bool
    """Whether a clone's working directory is beside it."""
    seen: str
    free_bytes: int | None
    holds: tuple[str, ...]


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
    machine = context.need(target.look)
    accounts.changes_folder(machine.host, path.parent, machine.account)
    return look_at(machine.host, path, account=machine.account)


def look_at(host: Host, path: Path, *, account: str | None) -> Directory:
    """Look at a data directory as `account`, who runs its server; None is the current user.

    Raises CommandFailed, CommandTimedOut.
    """
    argv = scripts.argv("directory", "of_clone", str(path), LEFTOVER)
    lines = host.run(argv, user=account, timeout=_SECONDS).stdout.splitlines()
    kind, leftover, seen, disk, *holds = lines
    if kind not in get_args(Kind):  # pragma: no cover  # the script prints no other
        raise AssertionError(kind)
    measured = files.of_df(disk)
    return Directory(
        cast("Kind", kind),
        bool(leftover),
        seen,
        measured[1] if measured else None,
        tuple(holds),
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is in the way of a clone, and a disk without room for it."""
    place, source = context.need(look), context.of(server.look)
    yield from _in_the_way(context)
    if source is not None:
        yield from wal.judge_target(context, place.seen, place.free_bytes, source)


def _in_the_way(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is neither absent nor empty."""
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
            f"{path} is not empty: {listed(place.holds)}",
            hint="if it is a server's, stop that; then move its contents away, or " + elsewhere,
        )
