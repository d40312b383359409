"""One command in transit over a channel: fed, read, and killed when its time is over."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from shardctl.hosts.host import (
    CommandTimedOut,
    Completed,
    HostLost,
    HostUnreachable,
    SudoRefused,
)
from shardctl.hosts.ssh_links import QUIET, guarded
from shardctl.hosts.ssh_wrapper import GO

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.hosts.output import Text
    from shardctl.hosts.ssh_links import Link
    from shardctl.hosts.ssh_wrapper import Wrapped

UNTOLD = 255
"""ssh's code for a command whose host reports none."""
_PIECE = 65536
_TICK = 1.0
_KILLED_WITHIN = 10.0


class _Late(Exception):
    """A command that has had its time."""


class Word:
    """What a command waits for on its host that is held back: that it may go, or shall not."""

    def __init__(self) -> None:
        self._said = threading.Event()
        self._go = False

    def say(self, *, go: bool) -> None:
        """Send it; the first word counts."""
        if not self._said.is_set():
            self._go = go
            self._said.set()

    def may_go(self) -> bool:
        """Wait for the word."""
        self._said.wait()
        return self._go


class Call:
    """A command that runs once. All its streams move at once, so it takes three threads.

    What it prints goes to `output` in the caller's thread.
    """

    def __init__(
        self,
        link: Link,
        channel: Any,
        wrapped: Wrapped,
        output: Text,
        timeout: float | None,
        *,
        word: Word | None = None,
    ) -> None:
        self.left: str | None = None
        """The process group of a command that has ended and whose outputs have not."""
        self._link = link
        self._channel = channel
        self._wrapped = wrapped
        self._output = output
        self._timeout = timeout
        self._deadline = None if timeout is None or word else time.monotonic() + timeout
        self._word = word
        self._heard = time.monotonic()
        self._errors: list[bytes] = []
        self._before = b""
        self._group: str | None = None

    def carry_out(self) -> Completed:
        """Run the command to its end, and give what it left.

        Raises CommandTimedOut when it was killed, HostLost when that is unknown, and SudoRefused
        and HostUnreachable when it did not begin.
        """
        script = self._wrapped.script()
        threads = [
            threading.Thread(target=self._send, args=(script,), daemon=True),
            threading.Thread(target=self._collect_errors, daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while piece := self._patiently(self._receive):
                self._take(piece)
            self._patiently(self._channel.status_event.wait)
            said = self._output.end()
        except _Late:
            self._kill()
            raise CommandTimedOut(self._wrapped.argv, self._timeout or 0) from None
        finally:
            # Its input ends with the channel, and with that the command, if it still runs.
            self._channel.close()
            if self._word is not None:
                self._word.say(go=False)
            for thread in threads:
                thread.join()
        return self._judged(said)

    def _send(self, script: bytes) -> None:
        """Begin the command and feed it; what goes wrong here shows in what is read."""
        with guarded():
            self._channel.exec_command(self._wrapped.line(len(script)))
            self._feed(script)
            if self._word is None:
                return
            if not self._word.may_go():
                self._channel.shutdown_write()
                return
            if self._timeout is not None:
                self._deadline = time.monotonic() + self._timeout
            self._feed(GO.encode())

    def _feed(self, text: bytes) -> None:
        left = memoryview(text)
        while left:
            try:
                sent = self._channel.send(left[:_PIECE])
            except TimeoutError:
                continue
            if not sent:  # the channel has been closed
                return
            left = left[sent:]

    def _collect_errors(self) -> None:
        with guarded():
            while True:
                try:
                    piece = self._channel.recv_stderr(_PIECE)
                except TimeoutError:
                    continue
                if not piece:
                    return
                self._errors.append(piece)

    def _receive(self, seconds: float) -> bytes | None:
        """Read what comes within `seconds`; None if nothing does, empty at the end."""
        self._channel.settimeout(seconds)
        try:
            return bytes(self._channel.recv(_PIECE))
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
                if not self._link.answers():
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
        if self._channel.status_event.is_set():
            self.left = self._group
            return
        # In a thread, for nothing can be sent to a host that takes nothing.
        threading.Thread(target=self._hang_up, daemon=True).start()
        if not self._channel.status_event.wait(_KILLED_WITHIN):
            self._link.close()
            raise self._lost(
                "the host stopped responding when the command had to be killed after "
                f"{self._timeout:g} s"
            )

    def _hang_up(self) -> None:
        with guarded():
            self._channel.shutdown_write()

    def _judged(self, said: str) -> Completed:
        """Find out how it ended, from its code or for want of one."""
        code: int = self._channel.exit_status
        if code == -1 and not self._link.answers(now=True):
            raise self._lost("the connection broke")
        errors = b"".join(self._errors)
        _, begun, own = errors.partition(f"{self._wrapped.mark}\n".encode())
        text = (own if begun else errors).decode(errors="replace")
        if self._group is None:
            raise self._not_begun((text or self._before.decode(errors="replace")).strip())
        if code == -1:
            code, text = UNTOLD, f"{text}\nits shell ended without a code, as when it is killed"
        return Completed(said, text, code)

    def _not_begun(self, said: str) -> SudoRefused | HostUnreachable:
        host = self._link.settings.host
        lines = said.splitlines()
        reason = lines[-1] if lines else "no output"
        if self._wrapped.sudo_to is not None:
            # Of sudo's own lines the first describes what is wrong, and further ones what came of
            # it.
            own = [line.removeprefix("sudo: ") for line in lines if line.startswith("sudo: ")]
            return SudoRefused(
                host, self._link.login, self._wrapped.sudo_to, own[0] if own else reason
            )
        return HostUnreachable(
            host,
            f"it cannot run commands for {self._link.login}: {reason}",
            hint="give that user a login shell on the host, and allow the key to run commands",
        )

    def _lost(self, reason: str) -> HostLost:
        return HostLost(self._link.settings.host, self._wrapped.argv, reason)
