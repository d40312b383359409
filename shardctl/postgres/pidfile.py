"""postmaster.pid: which process serves a data directory, and whether it really does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardctl import inputs

NAME = "postmaster.pid"
_MOST_BYTES = 4096
_PROC = Path("/proc")
_PROGRAMS = ("postgres", "postmaster")


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a server wrote about itself; `port` and `status` None while it has not yet."""

    pid: int
    port: int | None
    status: str | None
    """`starting`, `ready`, `standby` (ready, and in recovery) or `stopping`."""

    @property
    def ready(self) -> bool:
        """Whether the server takes connections."""
        return self.status in ("ready", "standby")


def read(data_directory: Path) -> PidFile | None:
    """Read the file; None when there is none, or nothing whole in it yet."""
    try:
        content = inputs.read(data_directory / NAME, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    lines = content.decode(errors="replace").splitlines()
    try:
        # A standalone backend (initdb's, --single) writes its pid negated.
        pid = abs(int(lines[0]))
        port = int(lines[3]) if len(lines) > 3 else None
    except (ValueError, IndexError):
        return None
    return PidFile(pid, port, lines[7].strip() if len(lines) > 7 else None)


def alive(data_directory: Path) -> PidFile | None:
    """Read the file if its process is a PostgreSQL server of this very directory.

    None for a stale file: its process is gone, or the number belongs to another by now.
    """
    found = read(data_directory)
    if found is None or not _serves(found.pid, data_directory.resolve()):
        return None
    return found


def orphans(data_directory: Path) -> list[int]:
    """List processes of a server of this directory, whatever the pid file contains.

    A killed postmaster can leave some; while they run, a second server would corrupt the
    data. Empty where there is no /proc.
    """
    real = data_directory.resolve()
    numbers = sorted(int(entry.name) for entry in _PROC.glob("[0-9]*"))
    return [pid for pid in numbers if _serves(pid, real)]


def _serves(pid: int, data_directory: Path) -> bool:
    if not (_PROC / "self").exists():
        return _exists(pid)
    process = _PROC / str(pid)
    try:
        if (process / "comm").read_text().strip() not in _PROGRAMS:
            return False
        return (process / "cwd").readlink() == data_directory
    except PermissionError:  # not ours to look at: the command line is for everybody
        return _in_command_line(process, data_directory)
    except OSError:  # gone, or a zombie
        return False


def _in_command_line(process: Path, data_directory: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word and Path(os.fsdecode(word)).resolve() == data_directory for word in words)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
