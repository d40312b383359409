"""One PgBouncer of this machine: write its files, start it, stop it, see whether it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardctl import inputs
from shardctl.errors import Refused, ShardctlError
from shardctl.hosts import accounts, files, ports
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.pgbouncer import ini, render
from shardctl.pgbouncer.console import Console, PoolerLost, PoolerUnavailable
from shardctl.topology import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Database, Pooler, Topology

Started = Literal["started", "up", "reloaded"]
Foreseen = Literal["make", "start", "reload", "up"]

_PURPOSE = "shardctl sandbox"
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
"""Where packages put the program, though an ordinary user's PATH may not lead there."""
_POLL = 0.02
_SECONDS = 20.0
_DAEMON_SECONDS = 1.0
_LINES = 10
_PID_BYTES = 64
_HBA = "hba.conf"
_PRIVATELY = 'umask 077 && : >>"$1" && chmod 600 -- "$1"'
"""Makes a file that only its user reads."""


def pooler_did_not_start(name: str, log: Path, lines: list[str]) -> Refused:
    """Report a PgBouncer that was started and does not answer; with its log's last lines."""
    shown = "".join(f"\n  {line}" for line in lines[-_LINES:]) or " (its log is empty)"
    return Refused(
        "pooler_did_not_start", f"pooler {name} did not start:{shown}", hint=f"its log is {log}"
    )


def pooler_on_other_port(name: str, config: Path, has: str, wanted: str, *, runs: bool) -> Refused:
    """Report a configuration with another port than the topology; no reload changes that."""
    what = "runs on" if runs else f"would run, by {config}, on"
    return Refused(
        "pooler_on_other_port",
        f"pooler {name} {what} port {has}; the topology has port {wanted}",
        hint=(
            "run `shardctl sandbox down`, then `up`, to use the new port; or correct the topology"
        )
        if runs
        else "the file was changed by hand: correct its listen_port, or the topology",
    )


def program() -> str | None:
    """Find PgBouncer's program; None where this machine has none."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=os.pathsep.join(_PLACES))


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn the system's errors on files into FileRefused."""
    try:
        yield
    except OSError as error:
        raise files.FileRefused(error.filename or path, error.strerror or str(error)) from error


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only one who starts a pooler in this folder: a second start waits for the first."""
    with _translated(folder):
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _translated(folder):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@dataclass(frozen=True, slots=True)
class Server:
    """A PgBouncer of this machine; `account` None runs it as oneself."""

    pooler: Pooler
    database: Database
    program: str
    account: str | None
    configuration: str
    """What its configuration should contain."""
    password: str | None = field(default=None, repr=False)
    """What administrators and the superuser log in with; without one, everybody is trusted."""

    @classmethod
    def of(cls, topology: Topology, pooler: Pooler, program: str) -> Server:
        """Put together what runs a pooler here; raises value_refused and account_refused."""
        config = pooler.config
        password = build.sandbox_password(topology)
        text = render.configuration(
            topology,
            pooler,
            auth_file=config.with_name("users.txt"),
            log_file=config.with_name(f"{config.stem}.log"),
            pid_file=config.with_name(f"{config.stem}.pid"),
            hba_file=config.with_name(_HBA) if password else None,
        )
        account = accounts.server_account(pooler.os_user)
        return cls(pooler, topology.database, program, account, text, password)

    @property
    def log(self) -> Path:
        """The file that takes its words."""
        return self.pooler.config.with_name(f"{self.pooler.config.stem}.log")

    @property
    def pid_file(self) -> Path:
        """The file with its process id."""
        return self.pooler.config.with_name(f"{self.pooler.config.stem}.pid")

    @property
    def users(self) -> Path:
        """The file of those who may log in."""
        return self.pooler.config.with_name("users.txt")

    def made(self) -> Literal["absent", "ours", "edited", "foreign"]:
        """Return what is in the place of its configuration."""
        text = files.read(Local(), self.pooler.config)
        if text is None:
            return "absent"
        if not render.is_edited(text):
            return "ours"
        return "edited" if "`shardctl sandbox up`" in text else "foreign"

    def foresee(self) -> Foreseen:
        """Return what `start` would do, and change nothing; raises what it would."""
        made = self._made()
        self._require_way()
        if self.running() is not None:
            self._require_port(runs=True)
            return "reload" if made == "ours" and self._stale() else "up"
        if made == "edited":
            self._require_port(runs=False)
        ports.claim_free(self.pooler.host, self.pooler.port)
        return "make" if made == "absent" else "start"

    def start(self) -> Started:
        """Write the files that are missing or older, start it, and wait until it answers.

        A configuration that was changed by hand stays as it is. Raises config_not_ours,
        users_not_ours, place_unreachable, pooler_on_other_port, PortInUse, FileRefused,
        pooler_did_not_start, and PoolerUnavailable when it runs and rejects the login.
        """
        self._made()
        self._require_way()
        folder = self.pooler.config.parent
        if not folder.exists():
            ports.claim_free(self.pooler.host, self.pooler.port)
        with _translated(folder):
            self._make_folder()
        with _alone(folder):
            return self._start()

    def _start(self) -> Started:
        made = self._made()
        pid = self.running()
        if pid is not None:
            self._require_port(runs=True)
            reload = made == "ours" and bool(self._stale())
            if reload:
                self._write()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
            self._wait(since=files.size(Local(), self.log))
            return "reloaded" if reload else "up"
        if made == "edited":
            self._require_port(runs=False)
        ports.claim_free(self.pooler.host, self.pooler.port)
        if made != "edited":
            self._write()
        if files.read(Local(), self.pooler.databases_file) is None:
            self._put(self.pooler.databases_file, "")
        with _translated(self.pid_file):  # no process has it: its number may be another's by now
            self.pid_file.unlink(missing_ok=True)
        since = files.size(Local(), self.log)
        try:
            Local().run([self.program, "-d", str(self.pooler.config)], user=self.account)
        except CommandFailed as error:
            if self.running() is None:  # else another `sandbox up` was quicker
                lines = self._log_lines(since) or error.completed.stderr.splitlines()
                raise pooler_did_not_start(self.pooler.name, self.log, lines) from error
        self._wait(since=since)
        return "started"

    def stop(self) -> bool:
        """End it at once, clients and all; return whether it ran. Raises pooler_did_not_stop."""
        pid = self.running()
        if pid is None:
            return False
        asked = False
        with contextlib.suppress(ShardctlError), self._console() as console:
            # What answers at the topology's address need not be this process.
            if console.config().get("conffile") == str(self.pooler.config):
                console.send("SHUTDOWN")
                asked = True
        if not asked or not self._ended(pid, seconds=2):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not self._ended(pid, seconds=_SECONDS):
            raise Refused(
                "pooler_did_not_stop",
                f"pooler {self.pooler.name} (pid {pid}) does not end",
                hint=f"end it with kill -9 {pid}",
            )
        return True

    def remove(self) -> tuple[Path, ...]:
        """Remove the files of a stopped pooler that the sandbox wrote, and give them."""
        if self.made() != "ours":
            return ()
        names = [self.log, self.pid_file, self.pooler.config, self.pooler.config.with_name(_HBA)]
        if self._users_made("ours") == "ours":
            names.append(self.users)
        aliases = files.read(Local(), self.pooler.databases_file) or ""
        if not aliases.strip() or not render.is_edited(aliases):
            names.append(self.pooler.databases_file)
        ends = (files.BACKUP, files.UNFINISHED)
        names += [path.with_name(path.name + end) for path in names for end in ends]
        removed = tuple(path for path in names if path.exists() or path.is_symlink())
        with _translated(self.pooler.config.parent):
            for path in removed:
                path.unlink()
        with contextlib.suppress(OSError):  # something else is in it
            self.pooler.config.parent.rmdir()
        return removed

    def running(self) -> int | None:
        """Give the process id if it runs, with this configuration; raises FileRefused."""
        with _translated(self.pid_file):
            try:
                pid = int(inputs.read(self.pid_file, _PID_BYTES))
            except (FileNotFoundError, NotADirectoryError, ValueError):
                return None
        return pid if self._is(pid) else None

    def _is(self, pid: int) -> bool:
        """Return whether a process is this pooler."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return os.fsencode(self.pooler.config) in words

    def _made(self) -> Literal["absent", "ours", "edited"]:
        made = self.made()
        if made == "foreign":
            raise Refused(
                "config_not_ours",
                f"pooler {self.pooler.name}: {self.pooler.config} was not written by `shardctl "
                "sandbox up`",
                hint="start this pooler yourself, or set another config in the topology",
            )
        for path in (*self._files(), self.pooler.databases_file):
            if path.is_symlink():
                raise files.FileRefused(
                    path, "is a symbolic link, which the sandbox does not follow"
                )
        if made != "edited" and self._users_made(made) == "foreign":
            raise Refused(
                "users_not_ours",
                f"pooler {self.pooler.name}: {self.users} was not written by `shardctl sandbox up`",
                hint="move that file away, or set a config in another directory in the topology",
            )
        return made

    def _users_made(self, made: str) -> Literal["absent", "ours", "edited", "foreign"]:
        """Return what is in the place of the file of users; `made` is that of the configuration."""
        text = files.read(Local(), self.users)
        if text is None:
            return "absent"
        if not render.is_edited(text) or (made == "ours" and render.is_unsealed_users(text)):
            return "ours"
        return "edited" if "`shardctl sandbox up`" in text else "foreign"

    def _require_way(self) -> None:
        """Refuse a place into which the pooler's user may not go, or where others replace files."""
        if self.account is not None:
            accounts.require_roots(self.pooler.config.parent.parent)
        blocked = accounts.blocked_at(self.pooler.config.parent, self.account)
        if blocked is not None and self.account is not None:
            raise Refused(
                "place_unreachable",
                f"{self.pooler.config}: the user {self.account}, who runs poolers for "
                f"root, cannot enter {blocked}",
                hint="set an absolute config elsewhere in the topology, such as "
                f"/var/tmp/shardctl/{self.pooler.config.parent.name}/{self.pooler.config.name}; or "  # noqa: S108  # only a suggestion
                + accounts.way_out(blocked, self.account),
            )

    def _require_port(self, *, runs: bool) -> None:
        """Refuse a configuration that stays as it is and has another port than the topology."""
        text = files.read(Local(), self.pooler.config) or ""
        has = {
            item.key: item.value
            for item in ini.read(text)
            if isinstance(item, ini.Setting) and item.section == "pgbouncer"
        }
        port, wanted = has.get("listen_port"), str(self.pooler.port)
        if port is not None and port != wanted:
            raise pooler_on_other_port(
                self.pooler.name, self.pooler.config, port, wanted, runs=runs
            )

    def _make_folder(self) -> None:
        """Make the directory, in which the pooler's user writes its log and its pid."""
        folder = self.pooler.config.parent
        if accounts.make_way(folder, self.account):
            if self.account is not None:
                accounts.require_roots(folder)  # another may have been quicker
            accounts.give(folder, self.account)

    def _files(self) -> dict[Path, str]:
        """Give the files that are the sandbox's, and what they should contain."""
        names = [*self.database.app_roles, self.database.user, self.pooler.admin_user]
        secret = sorted({self.database.user, self.pooler.admin_user}) if self.password else []
        users = render.users(list(dict.fromkeys(names)), dict.fromkeys(secret, self.password or ""))
        files = {self.pooler.config: self.configuration, self.users: users}
        return files | ({self.users.with_name(_HBA): render.access(secret)} if secret else {})

    def _stale(self) -> dict[Path, str]:
        """Give the files that differ from what they should contain, changed ones left out."""
        wanted = self._files()
        if self._users_made("ours") == "edited":
            del wanted[self.users]
        return {p: text for p, text in wanted.items() if files.read(Local(), p) != text}

    def _write(self) -> None:
        for path, text in self._stale().items():
            self._put(path, text)

    def _put(self, path: Path, text: str) -> None:
        """Write a file as the pooler's user: it follows no link where only root may write."""
        if path == self.users and self.password:
            with files.named(path):
                Local().run(["sh", "-c", _PRIVATELY, "sh", str(path)], user=self.account)
        files.write(Local(), path, text, user=self.account)

    def _console(self) -> Console:
        return Console(self.pooler, self.database, purpose=_PURPOSE)

    def _wait(self, *, since: int) -> None:
        """Wait until the console answers.

        Raises pooler_did_not_start when the program has ended, and PoolerUnavailable when it runs
        and rejects the login.
        """
        began = time.monotonic()
        while True:
            try:
                with self._console() as console:
                    console.version()
            except (PoolerUnavailable, PoolerLost) as error:
                if isinstance(error, PoolerUnavailable) and error.answered:
                    raise
                waited = time.monotonic() - began
                # A daemon has its pid written a moment after it was begun.
                ended = waited > _DAEMON_SECONDS and self.running() is None
                if ended or waited > _SECONDS:
                    lines = self._log_lines(since) or [error.message]
                    raise pooler_did_not_start(self.pooler.name, self.log, lines) from error
                time.sleep(_POLL)
            else:
                return

    def _log_lines(self, since: int) -> list[str]:
        return files.tail(Local(), self.log, since=since) if self.log.exists() else []

    def _ended(self, pid: int, *, seconds: float) -> bool:
        """Wait for the process itself, which removes its pid file a moment before it ends.

        While it ends it has no command line any more, and still has its connections.
        """
        deadline = time.monotonic() + seconds
        while self._is(pid) or _is_ending(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True


def _is_ending(pid: int) -> bool:
    """Return whether a process has begun to end and still has files open (proc(5): not Z or X)."""
    try:
        if Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
