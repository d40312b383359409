"""The topology file as commands change it: values, whether it can be written, and one change."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.errors import Refused, incomplete_if
from shardctl.hosts import files
from shardctl.hosts.local import Local
from shardctl.topology import loader, ranges
from shardctl.topology.edit import ScalarNotEditable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.topology.model import Topology

_MOUNTS = Path("/proc/self/mountinfo")
_LONG = 60
"""Longer lists of ranges get spaces, at which `edit` folds lines."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def text(path: Path) -> str:
    """Read the file as it is, with line breaks and byte order mark.

    Raises OSError and UnicodeDecodeError.
    """
    return inputs.read(path, loader.MOST_BYTES).decode("utf-8")


def spaced(listed: str) -> str:
    """Write a list of ranges with spaces, at which lines can be folded.

    >>> spaced("0-3,17")
    '0-3, 17'
    """
    return listed.replace(",", ", ")


def value(shards: Iterable[int]) -> str:
    """Write what a node's `shards:` gets."""
    listed = ranges.of(shards)
    return spaced(listed) if len(listed) > _LONG else listed


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the topology file: what was read, how its text changes, what it means then."""

    before: Topology
    after: Topology
    edit: Callable[[str], str]

    def write(self, *, begun: bool = False) -> None:
        """Change the file as it is now; raises topology_not_written.

        Comments may have changed since it was read, its meaning may not. `begun` is whether the
        command has changed something before.
        """
        path = self.before.path
        text = _read(path)
        try:
            if loader.parse(text.encode(), path) != self.before:
                raise _not_written(path, "the file changed after this command read it", begun=begun)
            replace(path, self.edit(text))
        except (loader.TopologyInvalid, files.FileRefused, ScalarNotEditable) as error:
            raise _not_written(path, error.message, begun=begun) from error


def plan(topology: Topology, edit: Callable[[str], str]) -> Change:
    """Make a change of the file that `topology` was read from; writes nothing.

    Raises topology_not_written where it could not be written, and TopologyInvalid with every
    problem that the new text has.
    """
    path = topology.path
    text = _read(path)
    try:
        new = edit(text)
        why = unwritable(path.resolve(strict=True), len(new.encode()))
    except ScalarNotEditable as error:
        raise _refused(path, error.message, hint=error.hint) from error
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise _refused(path, why)
    return Change(topology, loader.parse(new.encode(), path), edit)


def replace(path: Path, text: str) -> None:
    """Replace a topology file at once, without a copy of the old one; raises FileRefused."""
    files.write(Local(), path, text)
    files.remove(Local(), Path(f"{path}{files.BACKUP}"))


def _read(path: Path) -> str:
    try:
        return text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise _refused(path, why or str(error)) from error


def _refused(path: Path, why: str, *, hint: str = "") -> Refused:
    return Refused(
        "topology_not_written",
        f"{path} cannot be changed: {why}",
        hint=hint
        or "make the file and its directory writable for this user, or copy the file to a "
        "writable directory and give the copy with --topology",
    )


def _not_written(path: Path, why: str, *, begun: bool) -> Refused:
    return incomplete_if(
        begun,
        "topology_not_written",
        f"{path} was not changed: {why}",
        hint="run the command again: it reads the file as it is now",
    )


def unwritable(path: Path, size: int) -> str | None:
    """Return why a file cannot be replaced by one of `size` bytes, or None.

    `path` has no symbolic links. Raises OSError where the file cannot be checked.
    """
    folder = path.parent
    if path in _mount_points():
        return "it is a mount point, which cannot be replaced: mount its directory instead"
    try:
        # Only this shows root a read-only file system or an immutable file.
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError as error:
        if error.errno != errno.EACCES:  # its mode does not keep it from being replaced
            return f"{error.strerror} (it is immutable, see lsattr)"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return f"{folder} is not writable"
    held, me = folder.stat(), os.geteuid()
    if held.st_mode & stat.S_ISVTX and me not in (0, held.st_uid, path.stat().st_uid):
        return f"it belongs to another user, and only its owner may replace files in {folder}"
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size:
        return f"{folder} has no room for a new file of {size:,} bytes"
    return None


def _mount_points() -> set[Path]:
    """Return the mount points that this process sees; empty without /proc."""
    if not _MOUNTS.exists():
        return set()
    lines = _MOUNTS.read_text(errors="replace").splitlines()
    return {Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), line.split(" ")[4])) for line in lines}
