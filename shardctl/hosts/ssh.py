"""Another machine as a host, reached with fabric; importing this does not import fabric."""

from __future__ import annotations

import atexit
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shardctl.hosts.host import succeeded
from shardctl.hosts.openssh import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Completed
    from shardctl.hosts.openssh import SshSettings
    from shardctl.hosts.ssh_connection import Connection


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

    def close_all(self) -> None:
        """Close every connection."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        for one in found:
            _shut(one)


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
        begun: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run `argv` as in `Host.run`; another `user` through sudo, which asks for nothing.

        That user's command begins in `/`, the rest in the login user's home. Raises SudoRefused
        too.
        """
        began = time.monotonic()
        connection = connections.get(self.settings)
        sudo_to = None if user in (None, connection.user) else user
        wrapped = Wrapped(argv, sudo_to, env or {}, input or "")
        completed = connection.carry_out(wrapped, timeout, begun)
        return succeeded(argv, completed, user, began, self.settings.host)

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Give False: it takes a command."""
        del new, path, user
        return False
