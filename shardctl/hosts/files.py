"""Files on a host, by POSIX shell, so that a file over SSH goes the same way as a local one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts.host import CommandFailed

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.host import Host

BACKUP = ".shardctl-backup"
"""What the name of the file before has at its end."""
UNFINISHED = ".shardctl-new"
"""What the name of a file that is being written has at its end; only a killed write leaves one."""

_ABSENT = 66  # EX_NOINPUT of sysexits.h
_SECONDS = 30.0

_READ = f"""
[ -e "$1" ] || exit {_ABSENT}
exec cat -- "$1"
"""
# Beside the file, whole and on the disk, before it takes the file's place; an error leaves the
# old one as it is. Mode and owner stay; of a link, what it leads to is replaced.
_WRITE = f"""
set -eu
target=$(readlink -f -- "$1" || echo "$1")
new=$target{UNFINISHED}
trap 'rm -f -- "$new"' EXIT
rm -f -- "$new"
if [ -e "$target" ]; then cp -p -- "$target" "$new"; fi
dd of="$new" conv=fsync status=none
if [ -e "$target" ]; then ln -f -- "$target" "$target{BACKUP}"; fi
mv -f -- "$new" "$target"
sync "$(dirname -- "$target")"
"""
_PLACE = """
target=$(readlink -f -- "$1") || target=$1
folder=$(dirname -- "$target")
[ -d "$folder" ] || { echo "$folder: there is no such directory" >&2; exit 1; }
[ -w "$folder" ] && [ -x "$folder" ] || { echo "$folder: may not be written" >&2; exit 1; }
[ ! -e "$target" ] || [ -f "$target" ] || { echo "$target: is no file" >&2; exit 1; }
printf '%s' "$target"
"""
_SIZE = """
[ -e "$1" ] || { echo 0; exit; }
[ -r "$1" ] || { echo "$1: may not be read" >&2; exit 1; }
exec wc -c < "$1"
"""


class FileRefused(ShardctlError):
    """A file that could not be read or written, for the reason that the host gave."""

    def __init__(self, path: Path | str, reason: str) -> None:
        named = reason if str(path) in reason else f"{path}: {reason}"
        super().__init__(named, hint="make room or give permission there, or correct the path")
        self.path = path
        self.reason = reason


def read(host: Host, path: Path, *, user: str | None = None) -> str | None:
    """Give a file's text; None where there is none. Raises FileRefused."""
    try:
        return _run(host, _READ, path, user=user)
    except CommandFailed as error:
        if error.completed.code == _ABSENT:
            return None
        raise _refused(path, error) from error


def write(host: Host, path: Path, text: str, *, user: str | None = None) -> None:
    """Replace a file as one step that cannot be seen half done, and keep the one before.

    Raises FileRefused with the old file as it was.
    """
    try:
        _run(host, _WRITE, path, user=user, text=text)
    except CommandFailed as error:
        raise _refused(path, error) from error


def remove(host: Host, path: Path, *, user: str | None = None) -> None:
    """Remove a file, there or not; raises FileRefused."""
    try:
        _run(host, 'exec rm -f -- "$1"', path, user=user)
    except CommandFailed as error:
        raise _refused(path, error) from error


def place(host: Host, path: Path, *, user: str | None = None) -> str:
    """Name the file without links; raises FileRefused where `write` could not write it."""
    try:
        return _run(host, _PLACE, path, user=user)
    except CommandFailed as error:
        raise _refused(path, error) from error


def size(host: Host, path: Path | str, *, user: str | None = None) -> int:
    """Count a file's bytes, 0 where there is none; raises FileRefused."""
    try:
        return int(_run(host, _SIZE, path, user=user))
    except CommandFailed as error:
        raise _refused(path, error) from error


def tail(host: Host, path: Path | str, *, since: int, user: str | None = None) -> list[str]:
    """Read a file's lines after its first `since` bytes; raises FileRefused."""
    try:
        argv = ["tail", "-c", f"+{since + 1}", "--", str(path)]
        return host.run(argv, user=user, timeout=_SECONDS).stdout.splitlines()
    except CommandFailed as error:
        raise _refused(path, error) from error


def _run(
    host: Host, script: str, path: Path | str, *, user: str | None, text: str | None = None
) -> str:
    argv = ["sh", "-c", script, "sh", str(path)]
    return host.run(argv, user=user, input=text, timeout=_SECONDS).stdout


def _refused(path: Path | str, error: CommandFailed) -> FileRefused:
    lines = error.completed.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"the shell ended with code {error.completed.code}"
    return FileRefused(path, reason)
