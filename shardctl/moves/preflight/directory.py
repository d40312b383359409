"""The target's data directory: what is in it, and the free space on its disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts import accounts, files, scripts
from shardctl.meter import listed
from shardctl.moves.plan import TargetUnfit
from shardctl.moves.preflight import server, target, wal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

LEFTOVER = ".clone"
"""The suffix of a clone's working directory, which is beside the data directory."""

_SECONDS = 30.0


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
    argv = scripts.argv("directory", "of_clone", str(path), LEFTOVER)
    lines = machine.host.run(argv, user=machine.account, timeout=_SECONDS).stdout.splitlines()
    kind, leftover, seen, disk, *holds = lines
    return Directory(kind, bool(leftover), seen, files.bytes_of(disk)[1], tuple(holds))


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what is neither absent nor empty, and a disk without room."""
    node, place, source = context.target, context.need(look), context.of(server.look)
    account = context.need(target.look).account or "the current user"
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
            hint="check what is in it, then remove it",
        )
    if place.kind in unfit:
        code, what = unfit[place.kind]
        yield TargetUnfit(
            node.name,
            code,
            f"{node.data_directory} {what}",
            hint="stop a server that uses it, move its contents away and let its user enter it "
            "(chmod); or give the node another data_directory, such as one below it",
        )
    if source is not None:
        yield from wal.judge_target(context, place.seen, place.free_bytes, source)
