"""One local PostgreSQL server: make its data directory, start it, stop it, see whether it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardctl.hosts import ports, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import configuration, directory, pidfile
from shardctl.postgres.faults import (
    server_did_not_start,
    server_did_not_stop,
    server_elsewhere,
    server_not_ready,
    server_orphans,
    wrong_major,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.pidfile import PidFile

Started = Literal["started", "up", "reloaded"]
"""What `start` found to do: start it, nothing, or let a running one read its new settings."""
Foreseen = Literal["make", "start", "up", "reload"]
"""What `init` and `start` would do; `make` starts the server then, too."""
StopMode = Literal["smart", "fast", "immediate"]

_POLL = 0.02
_ENVIRONMENT = {"LC_ALL": "C"}  # so that messages are the ones that this module knows


@dataclass(frozen=True, slots=True)
class Server:
    """A server of this machine; `account` None runs it as oneself."""

    name: str
    host: str
    port: int
    data_directory: Path
    binaries: Binaries
    account: str | None
    settings: Mapping[str, str]

    @property
    def log(self) -> Path:
        """The file beside the data directory that takes the server's words."""
        return directory.log(self.data_directory)

    def foresee(self) -> Foreseen:
        """Return what `init` and `start` would do, and change nothing; raises what they would."""
        block = self._block()
        with directory.translated(self.data_directory):
            directory.check_way(self.data_directory, self.account)
            if directory.major(self.data_directory) is None:
                directory.require_empty(self.data_directory)
                ports.claim_free(self.host, self.port)
                return "make"
            self._require_major()
            found = self.running()
            if found is None:
                ports.claim_free(self.host, self.port)
                return "start"
            self._require_port(found)
            return "reload" if configuration.differs(self.data_directory, block) else "up"

    def init(
        self,
        *,
        superuser: str,
        marker: tuple[str, str] | None = None,
        passfile: Path | None = None,
        secret: Collection[str] = (),
    ) -> bool:
        """Make the data directory unless it is made; return whether that was to do.

        `marker` is the name and text of a file to leave in it. The `secret` roles log in with the
        first line of `passfile`, which is the superuser's password; all others are trusted. What
        exists there under its name is whole: a killed initdb leaves only `<data_directory>.new`,
        which the next one removes. Raises the errors of `postgres.directory`, wrong_major,
        CommandFailed.
        """
        block = self._block()
        with directory.translated(self.data_directory):
            directory.make_way(self.data_directory, self.account)
            with directory.alone(self.data_directory, self.account) as held:
                if directory.major(self.data_directory) is not None:
                    self._require_major()
                    return False
                directory.require_empty(self.data_directory)
                with directory.unfinished(self.data_directory, self.account) as new:
                    self._initdb(new, superuser, held, passfile)
                    if passfile is not None:
                        (new / "pg_hba.conf").unlink()
                        directory.leave(new / "pg_hba.conf", _access(secret), self.account)
                    if marker is not None:
                        directory.leave(new / marker[0], marker[1], self.account)
                    configuration.write(new, block)
                    new.rename(self.data_directory)
        return True

    def start(self, *, timeout: float = 60) -> Started:
        """Start the server with its settings, and wait until it takes connections.

        The data directory is made. `timeout` is in seconds. A running server is left
        running, and reads its settings again if they changed. Raises PortInUse, wrong_major
        and the errors of `postgres.faults`.
        """
        deadline = time.monotonic() + timeout
        block = self._block()
        with (
            directory.translated(self.data_directory),
            directory.alone(self.data_directory, self.account),
        ):
            self._require_major()
            found = self.running()
            while found is not None and found.status == "stopping":
                self._wait(deadline)
                found = self.running()
            if found is not None:
                self._require_ready(found, deadline)
                if not configuration.write(self.data_directory, block):
                    return "up"
                self._pg_ctl("reload")
                return "reloaded"
            self._remove_stale_pid_file()
            configuration.write(self.data_directory, block)
            self._start(deadline)
        return "started"

    def stop(self, *, mode: StopMode = "fast", timeout: float = 60) -> bool:
        """Stop the server and wait for its end; return whether it was up.

        Raises server_did_not_stop.
        """
        with directory.translated(self.data_directory):
            if self.running() is None:
                return False
            offset = directory.size(self.log)
            try:
                self._pg_ctl("stop", "-m", mode, "-w", "-t", str(int(timeout)), timeout=timeout)
            except CommandFailed as error:
                if self.running() is not None:
                    lines = self.log_tail(since=offset) or error.completed.stderr.splitlines()
                    raise server_did_not_stop(self.name, self.log, lines) from error
            # pg_ctl waits for the pid file to go, which a server removes before its processes end.
            deadline = time.monotonic() + timeout
            while pidfile.orphans(self.data_directory) and time.monotonic() < deadline:
                time.sleep(_POLL)
        return True

    def running(self) -> PidFile | None:
        """Give the running server's pid file, or None."""
        with directory.translated(self.data_directory):
            return pidfile.alive(self.data_directory)

    def log_tail(self, *, since: int = 0, lines: int = 15) -> list[str]:
        """Read the last `lines` of the log, none from before the byte `since`."""
        return directory.tail(self.log, since=since, lines=lines)

    def _block(self) -> str:
        return configuration.block(
            node=self.name, host=self.host, port=self.port, settings=self.settings
        )

    def _require_major(self) -> None:
        found = directory.major(self.data_directory)
        if found != str(self.binaries.major):
            raise wrong_major(self.name, self.data_directory, found, self.binaries)

    def _initdb(self, new: Path, superuser: str, held: int, passfile: Path | None) -> None:
        """Run initdb; the lock stays taken while it runs, even if shardctl is killed."""
        arguments = [self.binaries.program("initdb"), "--no-sync", "--auth=trust", "-E", "UTF8"]
        arguments += ["-U", superuser, "-D", str(new)]
        arguments += [f"--pwfile={passfile}"] if passfile is not None else []
        try:
            self._run([*arguments, "--locale=C.UTF-8"], keep_open=(held,))
        except CommandFailed as error:
            if "invalid locale name" not in error.completed.stderr:
                raise
            self._run([*arguments, "--locale=C"], keep_open=(held,))

    def _start(self, deadline: float) -> None:
        """Start the server; the port is tried first, for an error that names who has it."""
        offset = directory.size(self.log)
        seconds = max(1, int(deadline - time.monotonic()))
        words = str(self.data_directory), str(self.log), self.binaries.program("postgres")
        try:
            ports.claim_free(self.host, self.port)
            scripts.run(
                Local(), "server", "start", *words, str(seconds),
                user=self.account, timeout=seconds + 15,
            )  # fmt: skip
        except (CommandFailed, ports.PortInUse) as error:
            # A start that was killed with an earlier shardctl may just have got there.
            found = self.running()
            if found is not None:
                self._require_ready(found, deadline, since=offset)
                return
            if isinstance(error, ports.PortInUse):
                raise
            lines = self.log_tail(since=offset) or error.completed.stderr.splitlines()
            raise server_did_not_start(self.name, self.log, lines) from error
        found = self.running()
        if found is None:
            raise server_did_not_start(self.name, self.log, self.log_tail(since=offset))
        self._require_ready(found, deadline, since=offset)

    def _require_ready(self, found: PidFile, deadline: float, *, since: int = 0) -> None:
        """Wait until the running server takes connections, on the port that it should have."""
        current: PidFile | None = found
        while current is not None and not current.ready:
            self._wait(deadline)
            current = self.running()
        if current is None:
            raise server_did_not_start(self.name, self.log, self.log_tail(since=since))
        self._require_port(current)

    def _require_port(self, found: PidFile) -> None:
        if found.port != self.port:
            raise server_elsewhere(self.name, self.data_directory, found, self.port)

    def _wait(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise server_not_ready(self.name, self.log, self.log_tail())
        time.sleep(_POLL)

    def _remove_stale_pid_file(self) -> None:
        if left := pidfile.orphans(self.data_directory):
            raise server_orphans(self.name, self.data_directory, left)
        (self.data_directory / pidfile.NAME).unlink(missing_ok=True)

    def _pg_ctl(self, verb: str, *options: str, timeout: float = 30) -> None:
        program = self.binaries.program("pg_ctl")
        self._run([program, verb, "-D", str(self.data_directory), *options], timeout=timeout + 10)

    def _run(
        self, argv: list[str], *, timeout: float | None = None, keep_open: tuple[int, ...] = ()
    ) -> None:
        Local().run(argv, user=self.account, env=_ENVIRONMENT, timeout=timeout, keep_open=keep_open)


def _access(secret: Collection[str]) -> str:
    """Write a pg_hba.conf by which these roles and replication need a password, and others none."""
    names = ",".join('"' + name.replace('"', '""') + '"' for name in secret)
    everywhere = ("local {}", "host {} 0.0.0.0/0", "host {} ::/0")
    rules = (
        (f"all {names}", "scram-sha-256"),
        ("replication all", "scram-sha-256"),
        ("all all", "trust"),
    )
    lines = [f"{way.format(who)} {how}\n" for who, how in rules for way in everywhere]
    return "# `shardctl sandbox up` wrote this file.\n" + "".join(lines)
