"""The open SSH connections: one for each host, shared by all threads, closed at the end."""

from __future__ import annotations

import atexit
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.hosts.host import HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.hosts.ssh_connection import Connection
    from shardctl.hosts.ssh_settings import SshSettings

SESSIONS = 10
"""Commands at once on a connection; what OpenSSH's server allows by default."""
QUIET = 15.0
"""Seconds without a word from a command after which its host is asked for a sign of life."""
DEAD_AFTER = 45.0
"""Seconds that a host has for that."""
_POLL = 0.05
_REFUSED_FOR = 5.0


class StaleConnection(Exception):
    """A connection on which nothing can be begun any more; another may be opened."""


class Link:
    """One open connection, on which several commands run at once."""

    def __init__(self, settings: SshSettings, connection: Connection) -> None:
        self.settings = settings
        self.login: str = connection.user
        self._connection = connection
        self._transport = connection.transport
        self._changed = threading.Condition()
        self._running = 0
        self._allowed = SESSIONS
        self._asking = threading.Lock()
        self._heard = time.monotonic()

    @property
    def active(self) -> bool:
        """Whether it is open, as far as is known here."""
        return bool(self._transport.is_active())

    def session(self, seconds: float | None) -> Any:
        """Open a channel for a command, `done` with which is to be reported afterwards.

        Waits for other commands to end where the host allows no more, at most for `seconds`. Raises
        StaleConnection, and HostUnreachable where the host has no room for a command.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        refused_until: float | None = None
        while True:
            self._wait_for_room(deadline)
            channel = self._channel(self.settings.connect_timeout)
            if channel is not None:
                return channel
            # The host allows fewer than it was taken to, or has not yet noticed an end.
            with self._changed:
                self._running -= 1
                self._allowed = max(1, self._running)
                self._changed.notify()
                if self._running:
                    refused_until = None
                    continue
            refused_until = refused_until or time.monotonic() + _REFUSED_FOR
            if time.monotonic() > refused_until:
                raise HostUnreachable(
                    self.settings.host,
                    "the host accepts the login, but not commands",
                    hint="check MaxSessions and the restrictions of the key on that host",
                )
            time.sleep(_POLL)

    def spare_session(self) -> Any | None:
        """Open a channel for a command that may take long; None where other commands would miss it.

        `done` with it is to be reported afterwards. Raises StaleConnection.
        """
        with self._changed:
            if self._running >= self._allowed // 2:
                return None
            self._running += 1
        channel = self._channel(self.settings.connect_timeout)
        if channel is None:
            with self._changed:
                self._running -= 1
                self._allowed = max(1, self._running)
                self._changed.notify()
        return channel

    def done(self, channel: Any) -> None:
        """Close a command's channel, and let another begin."""
        channel.close()
        with self._changed:
            self._running -= 1
            self._changed.notify()

    def answers(self, *, now: bool = False) -> bool:
        """Ask for a sign of life, `now` or if there was none of late; closes what is dead."""
        with self._asking:
            if not self.active:
                return False
            if not now and time.monotonic() - self._heard < QUIET / 2:
                return True
            try:
                channel = self._channel(DEAD_AFTER)
            except StaleConnection:
                self.close()
                return False
            if channel is not None:
                channel.close()
            self._heard = time.monotonic()
            return True

    def close(self) -> None:
        """Close the connection and all that it goes through; commands on it are lost."""
        self._connection.shut()

    def _channel(self, seconds: float) -> Any | None:
        """Open a channel; None where the host refuses. Raises StaleConnection."""
        try:
            return self._transport.open_session(timeout=seconds)
        except _broken() as error:
            # Threads that are refused at once find each other's error: hence not by its type.
            if not self.active or str(error).startswith("Timeout"):
                raise StaleConnection from error
            return None

    def _wait_for_room(self, deadline: float | None) -> None:
        with self._changed:
            left = None if deadline is None else max(0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._running < self._allowed, left):
                raise HostUnreachable(
                    self.settings.host,
                    f"{self._running} commands are running on the host, and none ended in time",
                    hint="try again, or raise MaxSessions of the host's sshd",
                )
            self._running += 1


class Connections:
    """The links by what was asked for; callers wait for one that is being opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[SshSettings, Future[Link]] = {}

    def get(self, settings: SshSettings) -> Link:
        """Give the open link, or open one; raises HostUnreachable."""
        with self._lock:
            found = self._links.get(settings)
            usable = found is not None and (not found.done() or _is_up(found))
            if found is not None and usable:
                mine = None
            else:
                mine = self._links[settings] = Future()
        if mine is None:
            assert found is not None  # noqa: S101  # for the type checker
            return found.result()
        try:
            if found is not None and found.exception() is None:
                found.result().close()
            mine.set_result(_opened(settings))
        except BaseException as error:
            mine.set_exception(error)
            raise
        return mine.result()

    def close(self, settings: SshSettings) -> None:
        """Close the link, if there is one."""
        with self._lock:
            found = self._links.pop(settings, None)
        if found is not None and found.exception() is None:
            found.result().close()

    def close_all(self) -> None:
        """Close every link."""
        for settings in list(self._links):
            self.close(settings)


@contextmanager
def guarded() -> Iterator[None]:
    """Let a thread end when its connection does: a caller that waits for it finds out by itself."""
    try:
        yield
    except _broken():
        pass


def _broken() -> tuple[type[Exception], ...]:
    """List what paramiko raises when a connection breaks; there is one, so it is imported."""
    import paramiko  # type: ignore[import-untyped]  # noqa: PLC0415  # as above

    return (paramiko.SSHException, EOFError, OSError)


def _is_up(link: Future[Link]) -> bool:
    return link.exception() is None and link.result().active


def _opened(settings: SshSettings) -> Link:
    # Fabric takes a third of a second: it is imported when it is needed.
    from shardctl.hosts.ssh_connection import connect  # noqa: PLC0415

    return Link(settings, connect(settings))


connections = Connections()
atexit.register(connections.close_all)
