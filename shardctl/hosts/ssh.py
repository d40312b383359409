"""Another machine as a host, reached with fabric; importing this does not import fabric."""

from __future__ import annotations

import atexit
import logging
import shlex
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    Lines,
    Text,
)
from shardctl.hosts.openssh import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Completed
    from shardctl.hosts.openssh import SshSettings
    from shardctl.hosts.ssh_connection import Connection

logger = logging.getLogger(__name__)

_KILL = 'kill -s KILL -- "-$1"'  # the form that every shell knows
_KILLED_WITHIN = 10.0


class Connections:
    """The open connections, one for each host, shared by all threads, closed at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[SshSettings, Future[Connection]] = {}

    def get(self, settings: SshSettings) -> Connection:
        """Give the open one, or open one, for which other callers wait; raises HostUnreachable."""
        # Fabric takes a third of a second: it is imported when it is needed.
        from shardctl.hosts.ssh_connection import connect  # noqa: PLC0415

        with self._lock:
            found = self._open.get(settings)
            known = found is not None and (not found.done() or _is_up(found))
            one: Future[Connection] = found if found is not None and known else Future()
            self._open[settings] = one
        if not known:
            try:
                _shut(found)
                one.set_result(connect(settings))
            except BaseException as error:
                one.set_exception(error)
                raise
        return one.result()

    def close(self, settings: SshSettings) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            found = self._open.pop(settings, None)
        _shut(found)

    def close_all(self) -> None:
        """Close every connection."""
        for settings in list(self._open):
            self.close(settings)


def _is_up(opened: Future[Connection]) -> bool:
    return opened.exception() is None and opened.result().active


def _shut(opened: Future[Connection] | None) -> None:
    if opened is not None and opened.exception() is None:
        opened.result().shut()


connections = Connections()
atexit.register(connections.close_all)


class Ssh:
    """Runs commands on another machine, each in a session of its own, on one connection.

    Threads may share it, and hosts with the same settings share the connection. When it is
    closed, or this process ends, what still runs there is killed by its own host.
    """

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  # the word that subprocess uses
        timeout: float | None = None,
        line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run `argv` as in `Host.run`; another `user` through sudo, which asks for nothing.

        That user's command begins in `/`, the rest in the login user's home. Raises SudoRefused
        too.
        """
        began = time.monotonic()
        output = Lines(line) if line is not None else Text()
        with self._session(timeout) as (connection, channel):
            sudo_to = None if user in (None, connection.user) else user
            wrapped = Wrapped(argv, sudo_to, env or {}, input or "")
            remote = connection.remote(channel, wrapped, output, timeout)
            try:
                completed = remote.carry_out()
            except CommandTimedOut:
                # It has ended and has left a process that holds its output.
                if remote.left is not None:
                    self._kill_group(remote.left, sudo_to)
                raise
        logger.debug(
            "ran %s%s on %s: code %d, %d ms",
            shlex.join(argv),
            f" as {user}" if user else "",
            self.settings.host,
            completed.code,
            (time.monotonic() - began) * 1000,
        )
        if completed.code != 0:
            raise CommandFailed(argv, completed)
        return completed

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Give False: it takes a command."""
        del new, path, user
        return False

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        connections.close(self.settings)

    @contextmanager
    def _session(self, timeout: float | None) -> Iterator[tuple[Connection, Any]]:
        """Open a channel for a command."""
        connection = connections.get(self.settings)
        channel = connection.session(timeout)
        try:
            yield connection, channel
        finally:
            connection.done(channel)

    def _kill_group(self, group: str, user: str | None) -> None:
        with suppress(ShardctlError):
            self.run(["sh", "-c", _KILL, "sh", group], user=user, timeout=_KILLED_WITHIN)
