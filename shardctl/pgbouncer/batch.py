"""Many pauses over many consoles at once, in one thread: what a cutover needs."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.pgbouncer.console import CommandRefused, PoolerLost, pause_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.pgbouncer.console import Console


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of one pooler's aliases; `seconds` is when each was answered, from the begin.

    `waiting` were asked or were to be asked and have no answer yet: a PAUSE among them may
    hold later, or never.
    """

    seconds: Mapping[str, float]
    refused: Mapping[str, ShardctlError]
    waiting: tuple[str, ...]


def pause(
    poolers: Sequence[tuple[Sequence[Console], Iterable[str]]], *, seconds: float
) -> list[Answers]:
    """Pause aliases on poolers, each over its consoles, and wait at most `seconds`.

    An alias in `Answers.seconds` is paused and no transaction of it runs, as long as no session
    resumes any alias in the meantime: PgBouncer answers all sessions that wait at once, when all
    paused aliases together have no transaction left. So a transaction that goes on holds up
    every alias that was busy when it was asked about, and one console each; idle ones are
    answered at once over the rest. Consoles whose command was not answered are closed; to
    resume takes others then.
    """
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as ends:
        jobs = [_Job(selector, deque(aliases), deadline) for _, aliases in poolers]
        for job, (consoles, _) in zip(jobs, poolers, strict=True):
            ends.callback(job.abandon)
            for console in consoles:
                job.begin(console)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                break
            for key, _ in ready:
                console, job = key.data
                job.take(console)
    return [Answers(job.seconds, job.refused, (*job.running.values(), *job.todo)) for job in jobs]


@dataclass(slots=True)
class _Job:
    """The aliases of one pooler that are still to be asked about, and the results of the rest."""

    selector: selectors.BaseSelector
    todo: deque[str]
    deadline: float
    """After which nothing more is asked."""
    began: float = field(default_factory=time.monotonic)
    running: dict[Console, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, ShardctlError] = field(default_factory=dict)
    sockets: dict[Console, int] = field(default_factory=dict)

    def begin(self, console: Console) -> None:
        """Send the first command over a console, if there is one left."""
        if self.todo and self._send(console):
            self.sockets[console] = console.fileno()
            self.selector.register(console.fileno(), selectors.EVENT_READ, (console, self))

    def take(self, console: Console) -> None:
        """Take what has arrived, and when the answer is whole, send the next command."""
        try:
            if not console.ready():
                return
            console.answer()
        except CommandRefused as error:
            self.refused[self.running.pop(console)] = error
        except PoolerLost as error:
            self.refused[self.running.pop(console)] = error
            self._leave(console)  # the aliases to do go over the other consoles
            return
        else:
            self.seconds[self.running.pop(console)] = time.monotonic() - self.began
        if not (self.todo and self._send(console)):
            self._leave(console)

    def abandon(self) -> None:
        """End the sessions whose answers may yet come, and would be taken for another's."""
        for console in self.running:
            console.abandon()

    def _send(self, console: Console) -> bool:
        """Send the next command; return whether there was time, and the session took it."""
        if time.monotonic() > self.deadline:
            return False
        alias = self.todo.popleft()
        try:
            console.send(pause_command(alias))
        except PoolerLost as error:
            self.refused[alias] = error
            return False
        self.running[console] = alias
        return True

    def _leave(self, console: Console) -> None:
        """Wait for a console no more; one that broke off has no socket by which to name it."""
        self.selector.unregister(self.sockets.pop(console))
