"""Another machine as a host, reached with fabric; importing this does not import fabric."""

from __future__ import annotations

import logging
import shlex
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.hosts.host import CommandFailed, CommandTimedOut, Completed, HostUnreachable
from shardctl.hosts.output import Lines, Text
from shardctl.hosts.ssh_call import Call
from shardctl.hosts.ssh_held import HeldThere, NotHeld
from shardctl.hosts.ssh_links import StaleConnection, connections
from shardctl.hosts.ssh_wrapper import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.hosts.host import Held
    from shardctl.hosts.ssh_call import Word
    from shardctl.hosts.ssh_links import Link
    from shardctl.hosts.ssh_settings import SshSettings

logger = logging.getLogger(__name__)

_KILL = 'kill -s KILL -- "-$1"'  # the form that every shell knows
_KILLED_WITHIN = 10.0


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
    ) -> Completed:
        """Run `argv` as in `Host.run`; another `user` through sudo, which asks for nothing.

        That user's command begins in `/`, the rest in the login user's home. Raises SudoRefused
        too.
        """
        return self._carry_out(argv, Text(), user=user, env=env, given=input, timeout=timeout)

    def stream(
        self,
        argv: Sequence[str],
        *,
        line: Callable[[str], None],
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  # as above
        timeout: float | None = None,
    ) -> Completed:
        """Run `argv` as in `Host.stream`, and otherwise as `run` does."""
        output = Lines(line)
        return self._carry_out(argv, output, user=user, env=env, given=input, timeout=timeout)

    def hold(
        self,
        argv: Sequence[str],
        *,
        seconds: float,
        user: str | None = None,
        timeout: float | None = None,
    ) -> Held:
        """Prepare to run `argv` as in `Host.hold`: it waits there, all but begun."""

        def hold(word: Word) -> Completed:
            began = time.monotonic()
            with self._spare_session() as (link, channel):
                sudo_to = None if user in (None, link.login) else user
                wrapped = Wrapped(argv, sudo_to, {}, "", held_s=seconds)
                completed = Call(link, channel, wrapped, Text(), timeout, word=word).carry_out()
            return self._judged(argv, user, began, completed)

        return HeldThere(hold, partial(self.run, argv, user=user, timeout=timeout))

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        connections.close(self.settings)

    def _carry_out(
        self,
        argv: Sequence[str],
        output: Text,
        *,
        user: str | None,
        env: Mapping[str, str] | None,
        given: str | None,
        timeout: float | None,
    ) -> Completed:
        began = time.monotonic()
        with self._session(timeout) as (link, channel):
            sudo_to = None if user in (None, link.login) else user
            wrapped = Wrapped(argv, sudo_to, env or {}, given or "")
            call = Call(link, channel, wrapped, output, timeout)
            try:
                completed = call.carry_out()
            except CommandTimedOut:
                # It has ended and has left a process that holds its output.
                if call.left is not None:
                    self._kill_group(call.left, sudo_to)
                raise
        return self._judged(argv, user, began, completed)

    def _judged(
        self, argv: Sequence[str], user: str | None, began: float, completed: Completed
    ) -> Completed:
        """Log how a command ended, and give what it left; raises CommandFailed."""
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

    @contextmanager
    def _session(self, timeout: float | None) -> Iterator[tuple[Link, Any]]:
        """Open a channel; on a new connection, when the old one turns out to be dead."""
        link = connections.get(self.settings)
        try:
            channel = link.session(timeout)
        except StaleConnection:
            link.close()
            link = connections.get(self.settings)
            try:
                channel = link.session(timeout)
            except StaleConnection as error:
                link.close()
                raise HostUnreachable(
                    self.settings.host,
                    "the host accepted the connection and then stopped responding",
                ) from error
        try:
            yield link, channel
        finally:
            link.done(channel)

    @contextmanager
    def _spare_session(self) -> Iterator[tuple[Link, Any]]:
        """Open a channel that no other command will miss; raises NotHeld, HostUnreachable."""
        link = connections.get(self.settings)
        try:
            channel = link.spare_session()
        except StaleConnection as error:
            raise NotHeld from error
        if channel is None:
            raise NotHeld
        try:
            yield link, channel
        finally:
            link.done(channel)

    def _kill_group(self, group: str, user: str | None) -> None:
        with suppress(ShardctlError):
            self.run(["sh", "-c", _KILL, "sh", group], user=user, timeout=_KILLED_WITHIN)
