"""Where timelines diverge: from a server's history and a stopped server's control file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts.host import CommandFailed
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.hosts.host import Host
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.hosted import HostedServer

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_SECONDS = 30.0
_LINE = re.compile(r"\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)")


def control_data_refused(node: str, reason: str) -> Refused:
    """Report a data directory whose control file cannot be read."""
    return Refused(
        "control_data_refused",
        f"node {node}: cannot read its control file: {reason}",
        hint="check that its data directory exists, and its owner",
    )


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """Where a server's timeline began: on which one, and at which position."""

    timeline: int
    parent: int
    lsn: str


@dataclass(frozen=True, slots=True)
class ControlData:
    """pg_controldata's output for a data directory, whether its server runs or not."""

    system: str
    state: str
    """Such as `in production`, `in archive recovery`, `shut down in recovery`."""
    checkpoint: str
    redo: str
    checkpoint_timeline: int
    recovery_end: str
    recovery_timeline: int

    @property
    def timeline(self) -> int:
        """The latest timeline that it knows.

        The one of the checkpoint is still the old one for a while after a promotion; what is
        written before the first write on the new timeline is the end of recovery.
        """
        return max(self.checkpoint_timeline, self.recovery_timeline)


def position(lsn: str) -> int:
    """Give the number of bytes that a position in the WAL stands for.

    >>> position("1/10") - position("0/FFFFFFF0")
    32
    """
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def switched_at(session: Connection) -> TimelineSwitch | None:
    """Read where the timeline began on which the session's server, no standby, writes.

    None on the first timeline, which began with initdb.
    """
    row = session.execute(_QUERIES["history"]).fetchone()
    if row is None or row[1] is None:
        return None
    return latest_switch(int(row[0], 16), row[1])


def latest_switch(timeline: int, history: str) -> TimelineSwitch | None:
    r"""Read the last line of a timeline's history file; None when it has none.

    >>> latest_switch(3, "1\t0/3000148\tno recovery target\n\n2\t0/5000000\tx\n")
    TimelineSwitch(timeline=3, parent=2, lsn='0/5000000')
    """
    found = [match for line in history.splitlines() if (match := _LINE.match(line))]
    return TimelineSwitch(timeline, int(found[-1][1]), found[-1][2]) if found else None


def control_data(machine: Host, server: HostedServer) -> ControlData:
    """Read the control file of a server, running or not, on its host.

    Raises control_data_refused.
    """
    argv = [server.binaries.program("pg_controldata"), "-D", str(server.data_directory)]
    try:
        text = machine.run(argv, user=server.account, env={"LC_ALL": "C"}, timeout=_SECONDS).stdout
    except CommandFailed as error:
        lines = error.completed.stderr.strip().splitlines()
        raise control_data_refused(server.name, lines[-1] if lines else "no output") from error
    values = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.splitlines())
    }
    try:
        return ControlData(
            system=values["Database system identifier"],
            state=values["Database cluster state"],
            checkpoint=values["Latest checkpoint location"],
            redo=values["Latest checkpoint's REDO location"],
            checkpoint_timeline=int(values["Latest checkpoint's TimeLineID"]),
            recovery_end=values["Minimum recovery ending location"],
            recovery_timeline=int(values["Min recovery ending loc's timeline"]),
        )
    except KeyError as error:
        raise control_data_refused(server.name, f"pg_controldata did not show {error}") from error
