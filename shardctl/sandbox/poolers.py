"""Starts, stops and checks the local poolers of a topology, and writes their files."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from shardctl.errors import Refused
from shardctl.hosts import accounts, files, ports
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console, PoolerLost, PoolerUnavailable
from shardctl.sandbox.servers import Down, each
from shardctl.topology import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.fanout import Progress
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
_PRIVATELY = 'umask 077 && : >>"$1" && chmod 600 -- "$1"'
"""Makes a file that only its user reads."""

WITHOUT = "this machine has no pgbouncer (apt-get install pgbouncer); continuing without"
"""The start of the note where the sandbox runs no poolers."""

Value = TypeVar("Value")


def pooler_did_not_start(name: str, log: Path, lines: list[str]) -> Refused:
    """Report a PgBouncer that was started and does not answer; with its log's last lines."""
    shown = "".join(f"\n  {line}" for line in lines[-_LINES:]) or " (its log is empty)"
    return Refused(
        "pooler_did_not_start", f"pooler {name} did not start:{shown}", hint=f"its log is {log}"
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
    """What its configuration should contain."""
    password: str | None = field(default=None, repr=False)
    """What administrators and the superuser log in with; without one, everybody is trusted."""

    @classmethod
    def of(cls, topology: Topology, pooler: Pooler, program: str) -> Server:
        """Put together what runs a pooler here; raises value_refused and account_refused."""
        password = build.sandbox_password(topology)
        text = render.configuration(topology, pooler, secret=bool(password))
        account = accounts.server_account(pooler.os_user)
        return cls(pooler, topology.database, program, account, text, password)

    @property
    def log(self) -> Path:
        """The file that takes its words."""
        return self.pooler.config.with_suffix(".log")

    @property
    def pid_file(self) -> Path:
        """The file with its process id."""
        return self.pooler.config.with_suffix(".pid")

    @property
    def users(self) -> Path:
        """The file of those who may log in."""
        return self.pooler.config.with_name(render.USERS)

    @property
    def own(self) -> Path:
        """The file of the user's own settings."""
        return self.pooler.config.with_suffix(render.OWN)

    def made(self, path: Path | None = None) -> Literal["absent", "ours", "foreign"]:
        """Return what is in the place of a file, if none is named of its configuration."""
        text = self._read(path or self.pooler.config)
        if text is None:
            return "absent"
        return "ours" if render.SANDBOX in text else "foreign"

    def foresee(self) -> Foreseen:
        """Return what `start` would do, and change nothing; raises what it would."""
        self._require_ours()
        accounts.require_own(self.pooler.config.parent, self.account)
        if self.running() is not None and not self._stale():
            return "up"
        return "make" if self.made() == "absent" else "start"

    def start(self) -> Started:
        """Rewrite its files, but not the user's own, start it, and wait until it answers.

        One that runs is started again where a file is new. Raises config_not_ours, FileRefused,
        pooler_did_not_start, PoolerUnavailable when it runs and rejects the login, and what
        `accounts.own` raises.
        """
        folder = self.pooler.config.parent
        self._require_ours()
        accounts.own(folder, self.account)
        with files.named(self.log):
            Local().run(["touch", "--", str(self.log)], user=self.account)
        with accounts.alone(self.log):
            return self._start()

    def _start(self) -> Started:
        stale = self._stale()
        if self.running() is not None and not stale:
            self._wait(since=files.size(Local(), self.log))
            return "up"
        self.stop()  # what has changed may be its port, which no RELOAD changes
        self._write(stale)
        # No process has it: its number may be another's by now.
        files.remove(Local(), self.pid_file, user=self.account)
        since = files.size(Local(), self.log)
        try:
            Local().run([self.program, "-d", str(self.pooler.config)], user=self.account)
        except CommandFailed as error:
            lines = files.tail(Local(), self.log, since=since) or error.lines
            raise pooler_did_not_start(self.pooler.name, self.log, lines) from error
        self._wait(since=since)
        return "started"

    def stop(self) -> bool:
        """End it at once, clients and all; return whether it ran."""
        pid = self.running()
        if pid is None:
            return False
        # It keeps nothing that would have to be written. Its user wrote down its number.
        with contextlib.suppress(CommandFailed):  # it has just ended
            Local().run(["kill", "-s", "KILL", str(pid)], user=self.account)
        deadline = time.monotonic() + _SECONDS
        while self._is(pid) and time.monotonic() < deadline:
            time.sleep(_POLL)
        return True

    def remove(self) -> tuple[tuple[Path, ...], Path | None]:
        """Remove the files of a stopped pooler that the sandbox wrote; give these, and what stays.

        What stays is a file with the user's own settings.
        """
        if self.made() != "ours":
            return (), None
        written = (self.pooler.config, self.users, self.users.with_name(render.HBA))
        names = [self.log, self.pid_file, *(p for p in written if self.made(p) != "foreign")]
        aliases = self._read(self.pooler.databases_file) or ""
        if not aliases.strip() or not render.is_edited(aliases):
            names.append(self.pooler.databases_file)
        own = self._read(self.own)
        kept = self.own if own not in (None, render.OWN_SETTINGS) else None
        names += [self.own] if kept is None else []
        ends = ("", files.BACKUP, files.UNFINISHED)
        every = (path.with_name(path.name + end) for path in names for end in ends)
        removed = tuple(path for path in every if os.path.lexists(path))
        folder = self.pooler.config.parent
        with files.named(folder):
            Local().run(["rm", "-f", "--", *map(str, removed)], user=self.account)
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()
        return removed, kept

    def running(self) -> int | None:
        """Give the process id if it runs, with this configuration; raises FileRefused."""
        try:
            pid = int(self._read(self.pid_file) or "")
        except ValueError:
            return None
        return pid if self._is(pid) else None

    def _is(self, pid: int) -> bool:
        """Return whether a process is this pooler."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return os.fsencode(self.pooler.config) in words

    def _require_ours(self) -> None:
        accounts.require_way(self.pooler.config.parent, self.account)
        for path in self._files():
            if self.made(path) == "foreign":
                raise Refused(
                    "config_not_ours",
                    f"pooler {self.pooler.name}: {path} was not written by `shardctl sandbox up`",
                    hint="start this pooler yourself, move that file away, or set a config in "
                    "another directory in the topology",
                )

    def _files(self) -> dict[Path, str]:
        """Give the files that are the sandbox's, and what they should contain."""
        names = [*self.database.app_roles, self.database.user, self.pooler.admin_user]
        secret = sorted({self.database.user, self.pooler.admin_user}) if self.password else []
        users = render.users(list(dict.fromkeys(names)), dict.fromkeys(secret, self.password or ""))
        files = {self.pooler.config: self.configuration, self.users: users}
        return files | ({self.users.with_name(render.HBA): render.access(secret)} if secret else {})

    def _stale(self) -> dict[Path, str]:
        """Give the files that differ from what they should contain, and those that are missing."""
        wanted = {p: text for p, text in self._files().items() if self._read(p) != text}
        first = {self.own: render.OWN_SETTINGS, self.pooler.databases_file: ""}
        return wanted | {p: text for p, text in first.items() if self._read(p) is None}

    def _read(self, path: Path) -> str | None:
        return files.read(Local(), path, user=self.account)

    def _write(self, texts: Mapping[Path, str]) -> None:
        """Write files as the pooler's user: it follows no link where only root may write."""
        for path, text in texts.items():
            if path == self.users and self.password:
                with files.named(path):
                    Local().run(["sh", "-c", _PRIVATELY, "sh", str(path)], user=self.account)
            files.write(Local(), path, text, user=self.account)

    def _wait(self, *, since: int) -> None:
        """Wait until the console answers.

        Raises pooler_did_not_start when the program has ended, and PoolerUnavailable when it runs
        and rejects the login.
        """
        began = time.monotonic()
        while True:
            try:
                with Console(self.pooler, self.database, purpose=_PURPOSE) as console:
                    if console.config().get("conffile") == str(self.pooler.config):
                        return
                    reason = "another pooler answers at its address"
            except (PoolerUnavailable, PoolerLost) as error:
                answered = isinstance(error, PoolerUnavailable) and error.answered
                if answered and self.running() is not None:
                    raise
                reason = error.message
            waited = time.monotonic() - began
            # A daemon has its pid written a moment after it was begun.
            ended = waited > _DAEMON_SECONDS and self.running() is None
            if ended or waited > _SECONDS:
                lines = files.tail(Local(), self.log, since=since) or [reason]
                raise pooler_did_not_start(self.pooler.name, self.log, lines)
            time.sleep(_POLL)


@dataclass(frozen=True, slots=True)
class PoolerState:
    """The state of a pooler; `foreign` if the sandbox did not write its file."""

    pooler: Pooler
    state: Literal["up", "down", "absent", "foreign"]
    pid: int | None


def foresee(topology: Topology) -> list[tuple[Pooler, Foreseen]]:
    """Return what `up` would do with each pooler; changes nothing. Raises Problems."""
    return _each(topology, lambda one: (one.pooler, one.foresee())) if program() else []


def up(topology: Topology, progress: Progress) -> list[tuple[Pooler, Started]]:
    """Start a PgBouncer for every local pooler, if this machine has the program.

    The nodes must be running. Raises Problems for poolers that did not start; the rest keep
    running.
    """

    def start(one: Server) -> tuple[Pooler, Started]:
        progress.expect(one.pooler.name, "starting", 1)
        did = one.start()
        progress.advance(one.pooler.name)
        return one.pooler, did

    nodes = [node.name for node in topology.owning()]
    return _each(topology, start, begun="started", before=nodes) if program() else []


def down(topology: Topology, progress: Progress, *, delete: bool) -> list[Down]:
    """Stop every local pooler that the sandbox started; `delete` removes its files.

    Raises Problems; skips poolers that the sandbox did not start.
    """

    def stop(one: Server) -> Down | None:
        made = one.made()
        if made in ("absent", "foreign"):
            return None
        progress.expect(one.pooler.name, "stopping", 1)
        was_up = one.stop()
        deleted, kept = one.remove() if delete else ((), None)
        left = (kept, "it has your own settings") if kept else None
        progress.advance(one.pooler.name)
        return Down(one.pooler, was_up, deleted, left)

    return [one for one in _each(topology, stop, begun="stopped") if one is not None]


def status(topology: Topology) -> list[PoolerState]:
    """Return the state of every local pooler; raises Problems."""

    def look(one: Server) -> PoolerState:
        pid, made = one.running(), one.made()
        if made != "ours":
            return PoolerState(one.pooler, made, pid)
        return PoolerState(one.pooler, "up" if pid is not None else "down", pid)

    return _each(topology, look)


def _each(
    topology: Topology,
    work: Callable[[Server], Value],
    *,
    begun: str | None = None,
    before: Sequence[str] = (),
) -> list[Value]:
    """Call `work` for every local pooler, as `servers.each` does."""
    # Stopping or checking a pooler does not need the program.
    found = program() or "pgbouncer"
    local = [p for p in topology.poolers.values() if ports.is_loopback(p.host) and p.ssh is None]
    return each(
        local,
        "pooler",
        lambda pooler: work(Server.of(topology, pooler, found)),
        begun=begun,
        before=before,
    )
