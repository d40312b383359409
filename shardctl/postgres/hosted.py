"""A PostgreSQL server on whichever host, as a move runs it: started, stopped, and seen there."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from shardctl.errors import Refused
from shardctl.hosts import accounts, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.hosts.reach import host_of
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

_STOPPED = 3  # what a status command ends with of a server that does not run, as LSB has it
_SECONDS = 30.0
_LINES, _STOP_S = 15, 60

Started = Literal["started", "up", "reloaded"]
"""What `start` found to do: start it, nothing, or let a running one read its new settings."""
StopMode = Literal["smart", "fast", "immediate"]


def _refused(code: str, what: str, server: HostedServer, lines: Sequence[str]) -> Refused:
    """Give an error about what a server did not do; `lines` are its last words."""
    text = "\n  ".join([f"node {server.node.name}: {what}:", *lines])
    return Refused(
        code,
        text,
        hint=f"fix the cause, then try again; the whole log: {server.log}",
    )


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

    @classmethod
    def of(cls, output: str) -> Self | None:
        """Read what `look` of the script prints: less than three lines of one that just began."""
        pid, port, status, *_ = [*output.splitlines(), "", "", ""]
        if not pid:
            return None
        return cls(int(pid), int(port) if port.isdecimal() else None, status.strip() or None)


def server_elsewhere(name: str, data_directory: Path, found: PidFile, port: int) -> Refused:
    """Report a running server of this data directory on another port than the topology's."""
    return Refused(
        "server_elsewhere",
        f"node {name}: its server runs on port {found.port} (pid {found.pid}, "
        f"{data_directory}); the topology has port {port}",
        hint=f"write port: {found.port} into the topology, or stop the server first "
        "(`shardctl sandbox down`): it starts on the new port",
    )


def control_failed(node: str, verb: str, error: CommandFailed) -> Refused:
    """Report a command of a node's `control` that did not do what it is for."""
    reason = f": {error.lines[-1]}" if error.lines else ""
    return Refused(
        "control_failed",
        f"node {node}: the command control.{verb} exited with code {error.completed.code}{reason}",
        hint=f"correct control.{verb} of the node in the topology; shardctl runs it with "
        "`sh -c` on its host, as the login user",
    )


@dataclass(frozen=True, slots=True)
class HostedServer:
    """A server on `machine`; `account` None runs it as shardctl's login user."""

    node: Node
    data_directory: Path
    binaries: Binaries
    account: str | None
    machine: Host = field(default_factory=Local)

    @property
    def log(self) -> Path:
        """The file beside the data directory that takes its words, if pg_ctl starts it."""
        return log_of(self.data_directory)

    @property
    def own_start(self) -> str | None:
        """The operator's own command that starts it, which may know of other configuration."""
        return self.node.control.start if self.node.control else None

    def process(self) -> PidFile | None:
        """Give its process, as the pid file has it, or None; raises CommandFailed."""
        return PidFile.of(self._script("look"))

    def running(self) -> bool:
        """Return whether it runs, by its process or by the operator's own word.

        Raises CommandFailed, control_failed.
        """
        if self.process() is not None:
            return True
        status = self.node.control.status if self.node.control else None
        if status is None:
            return False
        try:
            self._run_own(status)
        except CommandFailed as error:
            # A command that does not know, as of a cluster that is disabled, is not needed then.
            if error.completed.code == _STOPPED or self._script("unused"):
                return False
            raise control_failed(self.node.name, "status", error) from error
        return True

    def start(self, *, timeout: float = 60) -> Started:
        """Start it, and wait until it takes connections; `timeout` is in seconds.

        Raises control_failed, CommandFailed, and the errors of this module.
        """
        deadline = time.monotonic() + timeout
        since = int(self._script("prepare"))
        if self.process() is not None:
            self._wait(deadline, since)
            return "up"
        failed: CommandFailed | None = None
        try:
            if self.own_start is not None:
                self._run_own(self.own_start, timeout=timeout)
            else:
                self._make_log()
                self._script("start", self.binaries.program("postgres"), timeout=timeout)
        except CommandFailed as error:
            # A start that was killed with an earlier shardctl may just have got there.
            if self.own_start is not None and self.process() is None:
                raise control_failed(self.node.name, "start", error) from error
            failed = error
        self._wait(deadline, since, failed)
        return "started"

    def stop(self, *, mode: StopMode = "fast") -> bool:
        """Stop it and wait for its end; return whether it was up.

        The operator's own command, where there is one, decides about the mode. Raises
        server_did_not_stop, and what `running` raises.
        """
        if not self.running():
            return False
        failed: CommandFailed | None = None
        try:
            if self.node.control is not None and self.node.control.stop is not None:
                self._run_own(self.node.control.stop, timeout=_STOP_S + 10)
            else:
                argv = [self.binaries.program("pg_ctl"), "stop", "-D", str(self.data_directory)]
                argv += ["-m", mode, "-w", "-t", str(_STOP_S)]
                self._run(argv, timeout=_STOP_S + 10)
        except CommandFailed as error:
            failed = error
        if self.running():
            lines = self.log_tail() or (failed.lines if failed else [])
            raise _refused(
                "server_did_not_stop", "the server did not stop", self, lines
            ) from failed
        # A server removes its pid file, for which pg_ctl waits, before its processes end.
        self._script("gone", str(_STOP_S), timeout=_STOP_S + _SECONDS)
        return True

    def reload(self) -> None:
        """Let it read its files again, soon; raises control_failed, CommandFailed."""
        command = self.node.control.reload if self.node.control else None
        if command is None:
            argv = [self.binaries.program("pg_ctl"), "reload", "-D", str(self.data_directory)]
            self._run(argv)
            return
        try:
            self._run_own(command)
        except CommandFailed as error:
            raise control_failed(self.node.name, "reload", error) from error

    def log_tail(self, *, since: int = 0) -> list[str]:
        """Read the last lines of the log, none from before the byte `since`.

        Empty where there is none that may be read, as of a server that is not started by pg_ctl.
        """
        argv = ["sh", "-c", 'tail -c "+$(($1 + 1))" -- "$2" | tail -n "$3"', "sh"]
        argv += [str(since), str(self.log), str(_LINES)]
        with suppress(CommandFailed):
            return self._run(argv).splitlines()
        return []

    def _make_log(self) -> None:
        """Make the log as the server's user; where that one may not, as shardctl's login user.

        Raises folder_unsafe.
        """
        user = accounts.changes_folder(self.machine, self.log.parent, self.account)
        words = "make_log", *self._place, (self.account or "") if user is None else ""
        scripts.run(self.machine, "server", *words, user=user, timeout=_SECONDS)

    def _wait(self, deadline: float, since: int, failed: CommandFailed | None = None) -> None:
        """Wait until it takes connections, on the port that it should have.

        `failed` is what the start said, which is shown where the log has nothing.
        """
        seconds = max(1, int(deadline - time.monotonic()))
        found = PidFile.of(self._script("await", str(seconds), timeout=seconds + _SECONDS))
        if found is None:
            lines = self.log_tail(since=since) or (failed.lines if failed else [])
            raise _refused(
                "server_did_not_start", "the server did not start", self, lines
            ) from failed
        if not found.ready:
            raise _refused(
                "server_not_ready",
                "the server is running, but was not ready in time",
                self,
                self.log_tail(),
            )
        if found.port != self.node.port:
            raise server_elsewhere(self.node.name, self.data_directory, found, self.node.port)

    def _run_own(self, command: str, *, timeout: float = _SECONDS) -> None:
        """Run a command of the operator's, as who logs in there, so that it may use sudo."""
        self.machine.run(["sh", "-c", command], timeout=timeout)

    def _run(self, argv: Sequence[str], *, timeout: float = _SECONDS) -> str:
        given = {"LC_ALL": "C"}
        return self.machine.run(argv, user=self.account, env=given, timeout=timeout).stdout

    def _script(self, part: str, *words: str, timeout: float = _SECONDS) -> str:
        """Run a part of the script as the server's user."""
        words = part, *self._place, *words
        return scripts.run(self.machine, "server", *words, user=self.account, timeout=timeout)

    @property
    def _place(self) -> tuple[str, str]:
        return str(self.data_directory), str(self.log)


def log_of(data_directory: Path) -> Path:
    """Name the log, beside the directory."""
    return data_directory.with_name(f"{data_directory.name}.log")


def find(node: Node, data_directory: Path) -> HostedServer:
    """Describe it with the programs and the user that its host has for it.

    Raises what is raised where these are missing, or the host cannot be reached.
    """
    machine = host_of(node)
    account = accounts.account_on(machine, node.os_user)
    programs = binaries.find(node.bin_directory, account=account, host=machine)
    return HostedServer(node, data_directory, programs, account, machine)
