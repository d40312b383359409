"""One PgBouncer of this machine: write its files, start it, stop it, see whether it runs."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files, ports
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console, PoolerLost, PoolerUnavailable

if TYPE_CHECKING:
    from shardctl.topology.model import Database, Pooler, Topology

Started = Literal["started", "up"]
Foreseen = Literal["make", "start", "up"]

_PURPOSE = "shardctl sandbox"
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
"""Where packages put the program, though an ordinary user's PATH may not lead there."""
_POLL = 0.02
_SECONDS = 20.0
_DAEMON_SECONDS = 1.0
_LINES = 10


class PoolerDidNotStart(ShardctlError):
    """A PgBouncer that was started and does not answer; its log's last lines say why."""

    def __init__(self, name: str, log: Path, lines: list[str]) -> None:
        said = "".join(f"\n  {line}" for line in lines[-_LINES:]) or " (its log is empty)"
        super().__init__(f"pooler {name} did not start:{said}", hint=f"its log is {log}")
        self.lines = lines


class ConfigNotOurs(ShardctlError):
    """A configuration that the sandbox did not write, and so does not run."""

    def __init__(self, name: str, config: Path) -> None:
        super().__init__(
            f"pooler {name}: {config} was not written by `shardctl sandbox up`",
            hint="start this pooler yourself, or name another config in the topology",
        )
        self.config = config


class PoolerDidNotStop(ShardctlError):
    """A PgBouncer that goes on running."""

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(
            f"pooler {name} (pid {pid}) does not end", hint=f"end it with kill -9 {pid}"
        )


def program() -> str | None:
    """Find PgBouncer's program; None where this machine has none."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=os.pathsep.join(_PLACES))


@dataclass(frozen=True, slots=True)
class Server:
    """A PgBouncer of this machine; `account` None runs it as oneself."""

    pooler: Pooler
    database: Database
    program: str
    account: str | None
    configuration: str
    """What its configuration should say."""

    @classmethod
    def of(cls, topology: Topology, pooler: Pooler, program: str) -> Server:
        """Put together what runs a pooler here; raises ValueRefused and AccountRefused."""
        folder = pooler.config.parent
        text = render.configuration(
            topology,
            pooler,
            auth_file=folder / "users.txt",
            log_file=folder / "pgbouncer.log",
            pid_file=folder / "pgbouncer.pid",
        )
        account = accounts.server_account(pooler.os_user)
        return cls(pooler, topology.database, program, account, text)

    @property
    def log(self) -> Path:
        """The file that takes its words."""
        return self.pooler.config.parent / "pgbouncer.log"

    @property
    def pid_file(self) -> Path:
        """The file with its process id."""
        return self.pooler.config.parent / "pgbouncer.pid"

    @property
    def users(self) -> Path:
        """The file of those who may log in."""
        return self.pooler.config.parent / "users.txt"

    def made(self) -> Literal["absent", "ours", "edited", "foreign"]:
        """Tell what stands in the place of its configuration."""
        text = files.read(Local(), self.pooler.config)
        if text is None:
            return "absent"
        if not render.is_edited(text):
            return "ours"
        return "edited" if "`shardctl sandbox up`" in text else "foreign"

    def foresee(self) -> Foreseen:
        """Tell what `start` would do, and change nothing; raises what it would."""
        made = self._made()
        if self.running() is not None:
            return "up"
        ports.claim_free(self.pooler.host, self.pooler.port)
        return "make" if made == "absent" else "start"

    def start(self) -> Started:
        """Write the files that are missing or older, start it, and wait until it answers.

        What was changed by hand stays as it is. Raises ConfigNotOurs, PortInUse, FileRefused
        and PoolerDidNotStart.
        """
        made = self._made()
        if self.running() is not None:
            self._wait(since=files.size(Local(), self.log))
            return "up"
        ports.claim_free(self.pooler.host, self.pooler.port)
        self._make_folder()
        if made != "edited":
            self._write(self.pooler.config, self.configuration)
            names = [*self.database.app_roles, self.database.user, self.pooler.admin_user]
            self._write(self.users, render.users(list(dict.fromkeys(names))))
        if files.read(Local(), self.pooler.databases_file) is None:
            files.write(Local(), self.pooler.databases_file, "")
        with contextlib.suppress(FileNotFoundError):
            self.pid_file.unlink()  # nobody has it: its number may be another process's by now
        since = files.size(Local(), self.log)
        try:
            Local().run([self.program, "-d", str(self.pooler.config)], user=self.account)
        except CommandFailed as error:
            if self.running() is None:  # else another `sandbox up` was quicker
                lines = self._said(since) or error.completed.stderr.splitlines()
                raise PoolerDidNotStart(self.pooler.name, self.log, lines) from error
        self._wait(since=since)
        return "started"

    def stop(self) -> bool:
        """End it at once, clients and all; tell whether it ran. Raises PoolerDidNotStop."""
        pid = self.running()
        if pid is None:
            return False
        with contextlib.suppress(PoolerUnavailable, PoolerLost), self._console() as console:
            console.send("SHUTDOWN")
        if not self._ended(seconds=2):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self._ended(seconds=_SECONDS):
            raise PoolerDidNotStop(self.pooler.name, pid)
        return True

    def remove(self) -> tuple[Path, ...]:
        """Remove the files of a stopped pooler that the sandbox wrote, and give them."""
        if self.made() != "ours":
            return ()
        databases = self.pooler.databases_file
        names = [self.log, self.pid_file, self.users, databases, self.pooler.config]
        names += [path.with_name(path.name + files.BACKUP) for path in names]
        removed = tuple(path for path in names if path.exists())
        for path in removed:
            path.unlink()
        with contextlib.suppress(OSError):  # something else is in it
            self.pooler.config.parent.rmdir()
        return removed

    def running(self) -> int | None:
        """Give the process id if it runs, with this configuration."""
        try:
            pid = int(self.pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, ValueError):
            return None
        return pid if os.fsencode(self.pooler.config) in words else None

    def _made(self) -> Literal["absent", "ours", "edited"]:
        made = self.made()
        if made == "foreign":
            raise ConfigNotOurs(self.pooler.name, self.pooler.config)
        return made

    def _make_folder(self) -> None:
        """Make the directory, in which the pooler's user writes its log and its pid."""
        folder = self.pooler.config.parent
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            if self.account is not None:
                one.chmod(0o755)
        if folder in missing and self.account is not None:
            owner = pwd.getpwnam(self.account)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        blocked = accounts.blocked_at(folder, self.account)
        if blocked is not None and self.account is not None:
            raise files.FileRefused(folder, f"the user {self.account} may not enter {blocked}")

    def _write(self, path: Path, text: str) -> None:
        if files.read(Local(), path) != text:
            files.write(Local(), path, text)

    def _console(self) -> Console:
        return Console(self.pooler, self.database, purpose=_PURPOSE)

    def _wait(self, *, since: int) -> None:
        """Wait until the console answers; raises PoolerDidNotStart when the program has ended."""
        began = time.monotonic()
        while True:
            try:
                with self._console() as console:
                    console.version()
            except (PoolerUnavailable, PoolerLost) as error:
                waited = time.monotonic() - began
                # A daemon has its pid written a moment after it was begun.
                ended = waited > _DAEMON_SECONDS and self.running() is None
                if ended or waited > _SECONDS:
                    lines = self._said(since) or [error.message]
                    raise PoolerDidNotStart(self.pooler.name, self.log, lines) from error
                time.sleep(_POLL)
            else:
                return

    def _said(self, since: int) -> list[str]:
        return files.tail(Local(), self.log, since=since) if self.log.exists() else []

    def _ended(self, *, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.running() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True
