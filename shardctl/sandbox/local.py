"""One PostgreSQL server of a sandbox: its data is made and removed here, and its settings written.

Root only makes the directory in which all of a sandbox is, for the user who runs the servers: what
happens in there is done by that user, whom no link leads further than before.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardctl.errors import Refused
from shardctl.hosts import accounts, files, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.meter import listed
from shardctl.pgbouncer import render
from shardctl.postgres import configuration
from shardctl.postgres.hosted import HostedServer, PidFile, log_of, server_elsewhere

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from shardctl.postgres.hosted import Started

Foreseen = Literal["make", "start", "up", "reload"]
"""What `init` and `start` would do; `make` starts the server then, too."""

_PLACE, _FOREIGN = 74, 75  # what the script ends with
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A data directory: its major version, its running server, whether the sandbox made it."""

    major: str | None
    server: PidFile | None
    ours: bool


@dataclass(frozen=True)
class LocalServer(HostedServer):
    """A server of this machine, whose data directory and settings are shardctl's."""

    def foresee(self) -> Foreseen:
        """Return what `init` and `start` would do, and change nothing; raises what they would."""
        self._block()
        if not self._is_made():
            accounts.require_own(self.data_directory.parent, self.account)
            return "make"
        found = self.process()
        if found is None:
            return "start"
        if found.port != self.node.port:
            raise server_elsewhere(self.node.name, self.data_directory, found, self.node.port)
        return "reload" if self._changed() else "up"

    def init(
        self,
        *,
        superuser: str,
        marker: str = "",
        passfile: Path | None = None,
        secret: Collection[str] = (),
    ) -> bool:
        """Make the data directory unless it is made; return whether that was to do.

        `marker` is the text of a file by which `remove` knows it. The `secret` roles log in with
        the first line of `passfile`, which is the superuser's password; all others are trusted. A
        killed shardctl leaves only `<data_directory>.new`, which the next one removes when that
        initdb has ended. Raises setting_refused, CommandFailed, directory_not_empty, and what
        `accounts.own` raises.
        """
        self._block()
        if self._is_made():
            return False
        accounts.own(self.data_directory.parent, self.account)
        words = self.binaries.program("initdb"), superuser, str(passfile or ""), marker
        rules = render.access(secret) if passfile is not None else ""
        with self._alone() as held:
            if self._is_made():  # another has been quicker
                return False
            try:
                _run(
                    "initdb", self.data_directory, *words,
                    user=self.account, text=rules, keep_open=[held],
                )  # fmt: skip
            except CommandFailed as error:
                if error.completed.code != _FOREIGN:
                    raise
                raise Refused(
                    "directory_not_empty",
                    f"not a data directory, and not empty: {listed(error.lines)}",
                    hint="move or remove its contents, or give the node another data_directory",
                ) from error
        return True

    def start(self, *, timeout: float = 60) -> Started:
        """Start it with its settings, as a hosted one; one that runs reads them if they changed."""
        with self._alone():
            self._script("prepare")
            if self.process() is None:
                self._configure()
            did = super().start(timeout=timeout)
            if did == "up" and self._configure():
                self.reload()
                return "reloaded"
        return did

    def _alone(self) -> AbstractContextManager[int]:
        self._make_log()
        return accounts.alone(self.log)

    def _is_made(self) -> bool:
        """Return whether there is a server's data; raises what says that it is another user's."""
        if look(self.data_directory).major is None:
            return False
        owner = self.data_directory.owner()
        if self.account not in (None, owner):
            raise accounts.directory_owned(self.data_directory, owner, self.account or "")
        return True

    def _block(self) -> str:
        return configuration.composed(configuration.parameters(self.node))

    def _changed(self) -> str | None:
        """Give what its configuration should be; None where it is that."""
        text = files.read(Local(), self._file, user=self.account) or ""
        new = configuration.replace(text, self._block())
        return new if new != text else None

    def _configure(self) -> bool:
        """Bring its configuration up to date; return whether that was to do."""
        if (new := self._changed()) is not None:
            files.write(Local(), self._file, new, user=self.account)
        return new is not None

    @property
    def _file(self) -> Path:
        return self.data_directory / configuration.NAME


def look(data_directory: Path) -> Seen:
    """Look at a data directory, existing or not; raises directory_refused."""
    said = _run("state", data_directory, timeout=_SECONDS)
    major, ours, process = said.split("\n", 2)
    return Seen(major or None, PidFile.of(process), bool(ours))


def remove(
    data_directory: Path, account: str | None
) -> tuple[tuple[Path, ...], tuple[Path, str] | None]:
    """Remove a stopped server's directory if it is marked, its log, and leftovers of initdb.

    Returns the removed paths, and the directory with the reason if it was kept.
    """
    log = log_of(data_directory)
    with accounts.alone(log) if log.is_file() and not log.is_symlink() else nullcontext():
        try:
            removed = _run("remove", data_directory, user=account)
        except CommandFailed as error:
            if error.completed.code != _FOREIGN:
                raise
            return (), (data_directory, error.completed.stderr.strip())
    return tuple(map(Path, removed.splitlines())), None


def _run(
    part: str,
    data_directory: Path,
    *words: str,
    user: str | None = None,
    text: str = "",
    timeout: float | None = None,
    keep_open: Collection[int] = (),
) -> str:
    """Run a part of the script of servers, and give what it prints; raises directory_refused."""
    argv = scripts.argv("server", part, str(data_directory), str(log_of(data_directory)), *words)
    try:
        done = Local().run(argv, user=user, input=text, timeout=timeout, keep_open=keep_open)
    except CommandFailed as error:
        if error.completed.code != _PLACE:
            raise
        reason = error.completed.stderr.strip().rpartition("\n")[2]
        raise accounts.directory_refused(data_directory, reason) from error
    return done.stdout
