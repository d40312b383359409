"""One command in transit over a channel: fed, read, and killed when its time is over.

Not by fabric's runner, which is slow, cuts characters, and forgets how a command ended.
Only `ssh_connection.py` imports this, for it imports paramiko.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import paramiko  # type: ignore[import-untyped]  # it brings no types

from shardctl.hosts.host import (
    CommandTimedOut,
    Completed,
    HostLost,
    HostUnreachable,
    SudoRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.hosts.openssh import Wrapped

BROKEN = (paramiko.SSHException, EOFError, OSError)
"""What paramiko raises when a connection breaks."""
UNTOLD = 255
"""ssh's code for a command whose host reports none."""
_PIECE = 65536
KILLED_WITHIN = 10.0
"""Seconds that a host has to kill a command."""
_ENDED_WITHIN = 1.0
QUIET = 15.0
"""Seconds without a word from a command that has no deadline, after which its host is asked."""


class Remote:
    """A command on a channel."""

    def __init__(
        self,
        connection: Any,
        channel: Any,
        wrapped: Wrapped,
        timeout: float | None,
        begun: Callable[[str], None] | None,
    ) -> None:
        self.left: str | None = None
        """The process group of a command that has ended and whose outputs have not."""
        self._connection = connection
        self._channel = channel
        self._host = connection.settings.host
        self._wrapped = wrapped
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._begun = begun
        self._errors: list[bytes] = []
        self._output: list[bytes] = []
        self._before = b""
        self._group: str | None = None

    def carry_out(self) -> Completed:
        """Run the command to its end, and give what it left.

        Raises CommandTimedOut when it was killed, HostLost when that is unknown, and SudoRefused
        and HostUnreachable when it did not begin.
        """
        threads = [
            threading.Thread(target=self._feed, args=[self._wrapped.script()], daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            self._wait()
        finally:
            # Its input ends with the channel, and with that the command, if it still runs.
            self._channel.close()
            for thread in threads:
                thread.join()
        return self._completed()

    def _feed(self, script: bytes) -> None:
        """Begin the command and feed it; what goes wrong here shows in what is read."""
        left = memoryview(script)
        with suppress(*BROKEN):
            self._channel.exec_command(self._wrapped.line(len(script)))
            while left:
                try:
                    sent = self._channel.send(left[:_PIECE])
                except TimeoutError:
                    continue
                if not sent:  # the channel has been closed
                    return
                left = left[sent:]

    def _read_errors(self) -> None:
        """Collect what it prints there, as bytes."""
        with suppress(*BROKEN):
            while True:
                try:
                    piece = self._channel.recv_stderr(_PIECE)
                except TimeoutError:
                    continue
                if not piece:
                    return
                self._errors.append(piece)

    def _wait(self) -> None:
        """Read what it prints until it has ended; raises CommandTimedOut and HostLost."""
        try:
            while piece := self._receive():
                self._take(piece)
            self._await_end()
        except TimeoutError:
            self._kill()
            printed = _text(self._output)
            raise CommandTimedOut(self._wrapped.argv, self._timeout or 0, printed) from None

    def _completed(self) -> Completed:
        """Find out how it ended, from its code or for want of one."""
        code: int = self._channel.exit_status
        if code == -1:  # a connection that broke is over within moments
            self._connection.transport.join(_ENDED_WITHIN)
            if not self._connection.active:
                raise self._lost("the connection broke")
        errors = _text(self._errors)
        _, begun, own = errors.partition(f"{self._wrapped.mark}\n")
        text = own if begun else errors
        if self._group is None:
            raise self._not_begun((text or _text([self._before])).strip())
        if code == -1:
            code, text = UNTOLD, f"{text}\nits shell ended without a code, as when it is killed"
        return Completed(_text(self._output), text, code)

    def _receive(self) -> bytes:
        """Read what comes, nothing at the end; raises TimeoutError at the deadline."""
        while self._deadline is None:
            self._channel.settimeout(QUIET)
            with suppress(TimeoutError):
                return bytes(self._channel.recv(_PIECE))
            self._connection.ask_for_life()
        self._channel.settimeout(self._seconds())
        return bytes(self._channel.recv(_PIECE))

    def _await_end(self) -> None:
        if not self._channel.status_event.wait(self._seconds()):
            raise TimeoutError

    def _seconds(self) -> float | None:
        """Give what is left of its time; raises TimeoutError, also while it prints on and on."""
        if self._deadline is None:
            return None
        if (left := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    def _take(self, piece: bytes) -> None:
        """Hand on what the command prints; what came before its mark is the login shell's."""
        if self._group is not None:
            self._output.append(piece)
            return
        self._before += piece
        noise, mark, rest = self._before.partition(f"{self._wrapped.mark} ".encode())
        group, end, rest = rest.partition(b"\n")
        if mark and end:
            self._before, self._group = noise, group.decode()
            self._output.append(rest)
            if self._begun is not None:
                self._begun(self._group)

    def _kill(self) -> None:
        """Have the host kill the command, and wait until it reports it; raises HostLost."""
        if self._channel.status_event.is_set():
            self.left = self._group
            return
        # In a thread, for nothing can be sent to a host that takes nothing.
        threading.Thread(target=self._hang_up, daemon=True).start()
        if not self._channel.status_event.wait(KILLED_WITHIN):
            self._connection.shut()
            raise self._lost(
                "the host stopped responding when the command had to be killed after "
                f"{self._timeout:g} s"
            )

    def _hang_up(self) -> None:
        with suppress(*BROKEN):
            self._channel.shutdown_write()

    def _not_begun(self, said: str) -> SudoRefused | HostUnreachable:
        host = self._host
        lines = said.splitlines()
        reason = lines[-1] if lines else "no output"
        if self._wrapped.sudo_to is not None:
            # Of sudo's own lines the first describes what is wrong, and further ones what came of
            # it.
            own = [line.removeprefix("sudo: ") for line in lines if line.startswith("sudo: ")]
            return SudoRefused(
                host, self._connection.user, self._wrapped.sudo_to, own[0] if own else reason
            )
        return HostUnreachable(
            host,
            f"it cannot run commands for {self._connection.user}: {reason}",
            hint="give that user a login shell on the host, and allow the key to run commands",
        )

    def _lost(self, reason: str) -> HostLost:
        return HostLost(self._host, self._wrapped.argv, reason, _text(self._output))


def _text(pieces: list[bytes]) -> str:
    """Decode output, with every kind of line end as a line feed."""
    return b"".join(pieces).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
