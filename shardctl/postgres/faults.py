"""What can be wrong with one local server, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.pidfile import PidFile


def _with_log(sentence: str, lines: Sequence[str]) -> str:
    return "\n  ".join([sentence, *lines])


class ServerDidNotStart(ShardctlError):
    """A server that ended instead of coming up; `lines` are its last words in this start."""

    def __init__(self, name: str, log: Path, lines: Sequence[str]) -> None:
        super().__init__(
            _with_log(f"node {name}: the server did not come up; its log ends with:", lines),
            hint=f"correct what it names, then start it again; the whole log: {log}",
        )
        self.name = name
        self.lines = list(lines)


class ServerNotReady(ShardctlError):
    """A server that runs and does not take connections yet, or does not end."""

    def __init__(self, name: str, log: Path, lines: Sequence[str]) -> None:
        super().__init__(
            _with_log(f"node {name}: the server runs, but is not ready in time; its log:", lines),
            hint=f"it was left running (a recovery can take long): watch {log}, then try again",
        )
        self.name = name
        self.lines = list(lines)


class ServerDidNotStop(ShardctlError):
    """A server that still runs after it was told to stop."""

    def __init__(self, name: str, log: Path, lines: Sequence[str]) -> None:
        super().__init__(
            _with_log(f"node {name}: the server did not stop; it says:", lines),
            hint=f"try again when what it waits for is over; the whole log: {log}",
        )
        self.name = name
        self.lines = list(lines)


class ServerElsewhere(ShardctlError):
    """A running server of this data directory on another port than the topology says."""

    def __init__(self, name: str, data_directory: Path, found: PidFile, port: int) -> None:
        super().__init__(
            f"node {name}: its server runs on port {found.port} (pid {found.pid}, "
            f"{data_directory}), and the topology says {port}",
            hint=f"write port: {found.port} into the topology, or stop the server first "
            "(`shardctl sandbox down`): it starts on the new port",
        )
        self.name = name
        self.found = found
        self.port = port


class ServerOrphans(ShardctlError):
    """Processes of a killed server that still use its data directory."""

    def __init__(self, name: str, data_directory: Path, pids: list[int]) -> None:
        listed = " ".join(map(str, pids))
        super().__init__(
            f"node {name}: the server is gone, but processes of it still use {data_directory}: "
            f"{listed}",
            hint=f"they end by themselves as a rule; if not: kill {listed}",
        )
        self.name = name
        self.pids = pids


class WrongMajor(ShardctlError):
    """A data directory of another major version than the programs."""

    def __init__(
        self, name: str, data_directory: Path, found: str | None, programs: Binaries
    ) -> None:
        fitting = binaries.of_major(int(found)) if found is not None and found.isdecimal() else None
        super().__init__(
            f"node {name}: {data_directory} was made by PostgreSQL "
            f"{found or '(PG_VERSION is missing)'}, "
            f"and {programs.directory} has {programs.major}",
            hint=f"give node {name} bin_directory: {fitting.directory}"
            if fitting
            else f"install PostgreSQL {found} and name it as bin_directory of node {name}, or "
            "remove the directory",
        )
        self.name = name
        self.found = found
