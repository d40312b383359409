"""The values of the global options, the topology that they name, and what a run has printed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import typer

    from shardctl.topology.model import Topology


DEFAULT_TOPOLOGY = Path("topology.yaml")


@dataclass(slots=True)
class Settings:
    """The options that may come before and after the command; one object per run.

    `topology` is None if neither option nor environment names one.
    """

    topology: Path | None = None
    verbose: bool = False
    output: str | None = None
    """The format of the result; None before the command's own options are read."""
    detailed: bool = False
    """Whether the exit code of a dry run shows pending changes."""
    dry_run: bool = False
    yes: bool = False
    lock_wait: timedelta | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """The values of options that the command shares with others, by their names."""
    changes: bool = False
    """Whether the command changes the fleet after a question, and is not a dry run."""
    pending: bool = False
    """Whether the command found something to change."""
    nagios: bool = False
    """Whether the exit code and the first line are those of a monitoring plugin."""

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.output == "json"

    def guess(self, words: Sequence[str]) -> None:
        """Read the options that affect errors from a command line that could not be parsed."""
        self.detailed = "--detailed-exitcode" in words
        self.nagios = "--nagios" in words
        if {"-ojson", "--output=json", "json"} & {*words}:
            self.output = "json"

    def exit_code(self, code: int) -> int:
        """Return the exit code of the process; `code` is that of the command."""
        if not self.detailed:
            return code
        return 1 if code else 2 if self.pending else 0


def topology_file(ctx: typer.Context) -> Path:
    """Return the file that `--topology`, `$SHARDCTL_TOPOLOGY` or the default names."""
    settings: Settings = ctx.obj
    return settings.topology or DEFAULT_TOPOLOGY


def load_topology(ctx: typer.Context) -> Topology:
    """Read the topology, and open the log.

    With --lock-wait, wait that long until no other command changes the fleet; raises NodeLocked.
    """
    from shardctl.cli import log
    from shardctl.topology import loader

    settings: Settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    topology = loader.load_trusted(topology_file(ctx))
    if settings.lock_wait:
        command = ctx.command_path.partition(" ")[2]
        ctx.call_on_close(_turn(topology, settings.lock_wait.total_seconds(), command).close)
        # A move that has ended has written into it.
        topology = loader.load_trusted(topology_file(ctx))
    return topology


def topology_if_there(ctx: typer.Context) -> Topology | None:
    """Read the topology; None if none is named and the default file does not exist."""
    settings: Settings = ctx.obj
    if settings.topology is None and not DEFAULT_TOPOLOGY.exists():
        return None
    return load_topology(ctx)


def _turn(topology: Topology, wait_s: float, command: str) -> ExitStack:
    """Wait until no other command changes a node; give the turn, to be closed at the end.

    As long as the turn is open, other commands that wait go on waiting. The command itself
    reports nodes that cannot be reached. Raises NodeLocked when the time is over.
    """
    from shardctl.cli.output import say
    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import connect
    from shardctl.state import lock

    until = time.monotonic() + wait_s
    with ExitStack() as turn:
        # All commands take the nodes in the order of the topology: two never wait for each other.
        for node in topology.nodes.values():
            try:
                session = connect(
                    node, topology.database, purpose=lock.purpose(command), autocommit=True
                )
            except ShardctlError:
                continue
            turn.callback(lock.release, session)
            if (holder := lock.holder(session)) is not None:
                say(f"waiting for {holder}, which is changing node {node.name}")
            lock.queue(session, node.name, until - time.monotonic())
        return turn.pop_all()
