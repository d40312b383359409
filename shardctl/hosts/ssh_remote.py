"""One command in transit over a channel: fed, read, and killed when its time is over.

Only `ssh_connection.py` imports this, for it imports fabric.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import fabric.runners  # type: ignore[import-untyped]  # neither brings types
import paramiko  # type: ignore[import-untyped]

from shardctl.hosts.host import (
    CommandTimedOut,
    Completed,
    HostLost,
    HostUnreachable,
    SudoRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.hosts.host import Text
    from shardctl.hosts.openssh import Wrapped

BROKEN = (paramiko.SSHException, EOFError, OSError)
"""What paramiko raises when a connection breaks."""
QUIET = 15.0
"""Seconds without a word from a command after which its host is asked for a sign of life."""
UNTOLD = 255
"""ssh's code for a command whose host reports none."""
_PIECE = 65536
_TICK = 1.0
_KILLED_WITHIN = 10.0


class _Late(Exception):
    """A command that has had its time."""


class Remote(fabric.runners.Remote):  # type: ignore[misc]  # fabric has no types
    """Fabric's runner, where it is slow, cuts characters, and forgets how a command ended.

    What the command prints goes to `output` in the caller's thread.
    """

    def __init__(
        self,
        connection: Any,
        channel: Any,
        wrapped: Wrapped,
        output: Text,
        timeout: float | None,
    ) -> None:
        super().__init__(connection)
        self.left: str | None = None
        """The process group of a command that has ended and whose outputs have not."""
        self.channel = channel
        self._host = connection.settings.host
        self._wrapped = wrapped
        self._script = wrapped.script()
        self._output = output
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._heard = time.monotonic()
        self._errors: list[bytes] = []
        self._before = b""
        self._group: str | None = None

    def carry_out(self) -> Completed:
        """Run the command to its end, and give what it left.

        Raises CommandTimedOut when it was killed, HostLost when that is unknown, and SudoRefused
        and HostUnreachable when it did not begin.
        """
        line = self._wrapped.line(len(self._script))
        completed: Completed = self.run(line, hide=True, warn=True, in_stream=self._script)
        return completed

    def start(self, command: str, shell: str, env: object, timeout: float | None = None) -> None:
        """Leave the beginning to the thread that feeds it: the host may take its time."""

    def create_io_threads(self) -> Any:
        """Read the output in the caller's thread, in `wait`."""
        threads, stdout, stderr = super().create_io_threads()
        del threads[self.handle_stdout]
        return threads, stdout, stderr

    def handle_stdin(self, input_: bytes, **_: object) -> None:
        """Begin the command and feed it; what goes wrong here shows in what is read."""
        left = memoryview(input_)
        with suppress(*BROKEN):
            self.channel.exec_command(self._wrapped.line(len(input_)))
            while left:
                try:
                    sent = self.channel.send(left[:_PIECE])
                except TimeoutError:
                    continue
                if not sent:  # the channel has been closed
                    return
                left = left[sent:]

    def handle_stderr(self, **_: object) -> None:
        """Collect what it prints there, as bytes."""
        with suppress(*BROKEN):
            while True:
                try:
                    piece = self.channel.recv_stderr(_PIECE)
                except TimeoutError:
                    continue
                if not piece:
                    return
                self._errors.append(piece)

    def wait(self) -> None:
        """Read what it prints until it has ended; raises CommandTimedOut and HostLost."""
        try:
            while piece := self._patiently(self._receive):
                self._take(piece)
            self._patiently(self.channel.status_event.wait)
        except _Late:
            self._kill()
            raise CommandTimedOut(self._wrapped.argv, self._timeout or 0) from None
        finally:
            # Its input ends with the channel, and with that the command, if it still runs.
            self.channel.close()

    def generate_result(self, **given: object) -> Completed:
        """Find out how it ended, from its code or for want of one."""
        del given
        code: int = self.channel.exit_status
        if code == -1 and not self.context.answers(now=True):
            raise self._lost("the connection broke")
        errors = b"".join(self._errors)
        _, begun, own = errors.partition(f"{self._wrapped.mark}\n".encode())
        text = (own if begun else errors).decode(errors="replace")
        if self._group is None:
            raise self._not_begun((text or self._before.decode(errors="replace")).strip())
        if code == -1:
            code, text = UNTOLD, f"{text}\nits shell ended without a code, as when it is killed"
        return Completed(self._output.end(), text, code)

    def _receive(self, seconds: float) -> bytes | None:
        """Read what comes within `seconds`; None if nothing does, empty at the end."""
        self.channel.settimeout(seconds)
        try:
            return bytes(self.channel.recv(_PIECE))
        except TimeoutError:
            return None

    def _patiently(self, wait: Callable[[float], Any]) -> Any:
        """Call `wait` with some seconds until it gives something.

        Raises _Late at the deadline, and HostLost when the host was silent for long and gives
        no sign of life.
        """
        while True:
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                raise _Late
            seconds = _TICK if self._deadline is None else min(_TICK, self._deadline - now)
            found = wait(seconds)
            if found is not None and found is not False:
                self._heard = time.monotonic()
                return found
            if time.monotonic() - self._heard > QUIET:
                if not self.context.answers():
                    raise self._lost("the host stopped responding")
                self._heard = time.monotonic()

    def _take(self, piece: bytes) -> None:
        """Hand on what the command prints; what came before its mark is the login shell's."""
        if self._group is not None:
            self._output.feed(piece)
            return
        self._before += piece
        noise, mark, rest = self._before.partition(f"{self._wrapped.mark} ".encode())
        group, end, rest = rest.partition(b"\n")
        if mark and end:
            self._before, self._group = noise, group.decode()
            self._output.feed(rest)

    def _kill(self) -> None:
        """Have the host kill the command, and wait until it reports it; raises HostLost."""
        if self.channel.status_event.is_set():
            self.left = self._group
            return
        # In a thread, for nothing can be sent to a host that takes nothing.
        threading.Thread(target=self._hang_up, daemon=True).start()
        if not self.channel.status_event.wait(_KILLED_WITHIN):
            self.context.shut()
            raise self._lost(
                "the host stopped responding when the command had to be killed after "
                f"{self._timeout:g} s"
            )

    def _hang_up(self) -> None:
        with suppress(*BROKEN):
            self.channel.shutdown_write()

    def _not_begun(self, said: str) -> SudoRefused | HostUnreachable:
        host = self._host
        lines = said.splitlines()
        reason = lines[-1] if lines else "no output"
        if self._wrapped.sudo_to is not None:
            # Of sudo's own lines the first describes what is wrong, and further ones what came of
            # it.
            own = [line.removeprefix("sudo: ") for line in lines if line.startswith("sudo: ")]
            return SudoRefused(
                host, self.context.user, self._wrapped.sudo_to, own[0] if own else reason
            )
        return HostUnreachable(
            host,
            f"it cannot run commands for {self.context.user}: {reason}",
            hint="give that user a login shell on the host, and allow the key to run commands",
        )

    def _lost(self, reason: str) -> HostLost:
        return HostLost(self._host, self._wrapped.argv, reason)
