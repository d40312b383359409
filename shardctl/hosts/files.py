"""Files on a host, by POSIX shell, so that a file over SSH goes the same way as a local one."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import scripts
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    HostLost,
    HostUnreachable,
    SudoRefused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.hosts.host import Host

BACKUP = ".shardctl-backup"
"""What the name of the file before has at its end."""
UNFINISHED = ".shardctl-new"
"""What the name of a file that is being written has at its end; only a killed write leaves one."""

HINT = "free disk space, correct the permissions, or correct the path"

_ABSENT = 66  # EX_NOINPUT of sysexits.h, as `scripts/file.sh` has it
_SECONDS = 30.0
_MOST_BYTES = 16 << 20
"""Bytes of the largest file that is read: ten times what the aliases of 65,536 shards need."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is, without links; two that are equal are one file, on whichever hosts.

    `folder` is machine, device and inode of its directory. What several machines share over
    a network is something else to each.
    """

    path: str = field(compare=False)
    folder: str
    name: str


class FileRefused(ShardctlError):
    """A file that could not be read or written, for the reason that the host gave.

    Where the connection to its host was lost, it may have been written all the same.
    """

    def __init__(self, path: Path | str, reason: str, *, hint: str = HINT) -> None:
        named = reason if str(path) in reason else f"{path}: {reason}"
        super().__init__(named, hint=hint)
        self.reason = reason


def read(host: Host, path: Path, *, user: str | None = None) -> str | None:
    """Give a file's text, whose line ends are as they are; None where there is none.

    Raises FileRefused, as all of these do, whatever becomes of the host.
    """
    try:
        coded = _carry_out(host, "content", path, str(_MOST_BYTES), user=user)
    except FileRefused as error:
        failed = error.__cause__
        if isinstance(failed, CommandFailed) and failed.completed.code == _ABSENT:
            return None
        raise
    return base64.b64decode(coded).decode(errors="replace")


def write(
    host: Host, path: Path, text: str, *, user: str | None = None, like: Path | None = None
) -> None:
    """Replace a file as one step that cannot be seen half done, and keep the one before.

    `like` is a file, perhaps not there, whose mode and owner it gets instead of its own. Raises
    FileRefused with the old file as it was, unless the host was lost.
    """
    words = (str(len(text.encode())), UNFINISHED, BACKUP, *((str(like),) if like else ()))
    _carry_out(host, "write", path, *words, user=user, text=text)


def replace(host: Host, new: Path, path: Path | str, *, user: str | None = None) -> None:
    """Let a file that lies beside another take its place, at once; raises FileRefused.

    It is on the disk already, and `path` is no link: `place_of` follows those, at leisure.
    """
    try:
        if host.renamed(new, Path(path), user=user):
            return
    except OSError as error:
        raise FileRefused(path, error.strerror or str(error)) from error
    with named(path):
        host.run(["mv", "-fT", "--", str(new), str(path)], user=user, timeout=_SECONDS)


def remove(host: Host, path: Path, *, user: str | None = None) -> None:
    """Remove a file, there or not; raises FileRefused."""
    with named(path):
        host.run(["rm", "-f", "--", str(path)], user=user, timeout=_SECONDS)


def place(host: Host, path: Path, *, user: str | None = None) -> Place:
    """Find the file behind links; raises FileRefused where `write` could not write it."""
    folder, _, found = _carry_out(host, "place", path, user=user).partition("\n")
    return Place(found, folder, found.rpartition("/")[2])


def place_of(host: Host, path: Path, *, user: str | None = None) -> str:
    """Name a file, there or not, without links; raises FileRefused."""
    with named(path):
        argv = ["readlink", "-m", "-n", "--", str(path)]
        return host.run(argv, user=user, timeout=_SECONDS).stdout


def size(host: Host, path: Path | str, *, user: str | None = None) -> int:
    """Count a file's bytes, 0 where there is none; raises FileRefused."""
    return int(_carry_out(host, "size", path, user=user))


_DISK_S = 10.0
"""How long the question may take: a network file system may hang."""


def disk(host: Host, path: Path | str, *, user: str | None = None) -> tuple[int, int]:
    """Measure the file system of a path: all its bytes, and the free ones.

    Raises what `Host.run` raises.
    """
    argv = ["stat", "-f", "-c", "%S %b %a", "--", str(path)]
    return bytes_of(host.run(argv, user=user, timeout=_DISK_S).stdout)


def bytes_of(blocks: str) -> tuple[int, int]:
    """Count the bytes of a file system, all and the free ones, of what `disk` has printed.

    >>> bytes_of("4096 1000 600")
    (4096000, 2457600)
    """
    size, every, free = map(int, blocks.split())
    return size * every, size * free


def tail(host: Host, path: Path | str, *, since: int, user: str | None = None) -> list[str]:
    """Read a file's lines after its first `since` bytes; raises FileRefused."""
    argv = ["tail", "-c", f"+{since + 1}", "--", str(path)]
    with named(path):
        return host.run(argv, user=user, timeout=_SECONDS).stdout.splitlines()


def _carry_out(
    host: Host,
    part: str,
    path: Path | str,
    *words: str,
    user: str | None,
    text: str | None = None,
) -> str:
    """Run a part of the script; raises FileRefused."""
    argv = scripts.argv("file", part, str(path), *words)
    with named(path):
        return host.run(argv, user=user, input=text, timeout=_SECONDS).stdout


@contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Let every way in which a command ends badly name the file."""
    try:
        yield
    except CommandTimedOut as error:
        raise FileRefused(path, f"no result within {error.seconds:g} s") from error
    except (HostUnreachable, HostLost, SudoRefused) as error:
        raise FileRefused(path, error.message, hint=error.hint) from error
    except CommandFailed as error:
        raise FileRefused(path, error.reason) from error
