"""A command that is held back on another machine until `go`."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shardctl.hosts.host import HostUnreachable, SudoRefused
from shardctl.hosts.ssh_call import Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.hosts.host import Completed


class NotHeld(Exception):
    """A command for which its host has no room while other commands run there."""


class HeldThere:
    """A command that a thread brings to its host, where it waits for the word.

    `hold` carries it there and gives how it ended; `run` runs it at once, where that came to
    nothing.
    """

    def __init__(self, hold: Callable[[Word], Completed], run: Callable[[], Completed]) -> None:
        self._run = run
        self._word = Word()
        self._outcome: Future[Completed] = Future()
        threading.Thread(target=self._carry_out, args=(hold,), daemon=True).start()

    def go(self) -> Completed:
        """Let it run as in `Held.go`; it does not start before."""
        if self._outcome.done():  # its host was lost in the meantime, or has waited for too long
            return self._run()
        self._word.say(go=True)
        try:
            return self._outcome.result()
        except (NotHeld, HostUnreachable, SudoRefused):
            return self._run()

    def drop(self) -> None:
        """Give it up, unless `go` was called."""
        self._word.say(go=False)

    def _carry_out(self, hold: Callable[[Word], Completed]) -> None:
        try:
            self._outcome.set_result(hold(self._word))
        except BaseException as error:  # noqa: BLE001  # `go` raises it
            self._outcome.set_exception(error)
