"""Pause aliases on many poolers at once, and let them serve again, with the file they have then.

One thread sends a cutover's pauses, over many consoles.

Between RELOAD and RESUME a login makes PgBouncer connect to an alias's new node; the pause closes
that connection at once, PgBouncer takes the node for one that fails, and all clients of the alias
wait for `server_login_retry`, 15 s unless configured otherwise. A login of an alias that no client
has used since it last led elsewhere does the same at any time of a pause, and so does a connection
that is being made when PAUSE comes. So both commands go in one packet, and `server_login_retry` is
shorter for a moment: what such a login has spoilt all the same is tried again at once.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.pgbouncer.console import CommandRefused, PoolerLost, pause_command, resume_command

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.pgbouncer.console import Console

RELOAD = "RELOAD"
SHORT_S = "0.01"
"""The `server_login_retry` of that moment."""

_SETTING = "server_login_retry"
_SECONDS = 60.0
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?")
_POLL_S = 0.01


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


def retry_of(console: Console) -> str:
    """Give the `server_login_retry` in force; empty where it is not to be put back.

    It is not where an earlier moment's is still in force: RELOAD is what ends that.
    """
    value = console.config().get(_SETTING, "")
    return value if _PLAIN.fullmatch(value) and not _short(value) else ""


def was_left_short(config: Mapping[str, str]) -> bool:
    """Report a pooler's settings whether `server_login_retry` is that of such a moment.

    >>> was_left_short({"server_login_retry": "0.01"}), was_left_short({"server_login_retry": "15"})
    (True, False)
    """
    value = config.get(_SETTING, "")
    return bool(_PLAIN.fullmatch(value)) and _short(value)


def begin(
    console: Console, aliases: Sequence[str], *, reload: bool, shorten: bool = True
) -> list[CommandRefused]:
    """Send what serves clients again, as one packet, and give what was refused.

    That an alias is not paused matters nothing. `end` has to follow where `server_login_retry` is
    to `shorten`. Raises PoolerLost.
    """
    commands = [RELOAD] if reload else []
    commands += [setting(SHORT_S)] if shorten else []
    commands += map(resume_command, aliases)
    return console.execute_all(commands, seconds=_SECONDS)


def end(console: Console, retry: str) -> None:
    """Put `server_login_retry` back; raises CommandRefused and PoolerLost."""
    if retry:
        console.execute(setting(retry))
    else:
        console.reload()


def _short(value: str) -> bool:
    return float(value) <= float(SHORT_S)


def setting(retry: str) -> str:
    """Write the command that sets `server_login_retry`; `retry` is a number."""
    return f"SET {_SETTING} = '{retry}'"


def watch(console: Console, aliases: Collection[str], *, seconds: float) -> tuple[str, ...]:
    """Wait until each alias's clients have had a connection that is free, or none waits.

    Gives those that were not within `seconds`. Raises PoolerLost.
    """
    deadline = time.monotonic() + seconds
    left = set(aliases)
    while True:
        waiting = {
            row["database"]
            for row in console.pools()
            if int(row["cl_waiting"] or 0) and not int(row["sv_idle"] or 0)
        }
        left &= waiting  # who has been served may wait again, as at any time
        if not left or time.monotonic() > deadline:
            return tuple(sorted(left))
        time.sleep(_POLL_S)
