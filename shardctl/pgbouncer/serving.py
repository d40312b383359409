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
_POLL_S = 0.01


@dataclass(slots=True)
class Pausing:
    """What becomes of one pooler's aliases; those that were not refused or wait are paused."""

    todo: deque[str]
    running: dict[Console, str] = field(default_factory=dict)
    refused: dict[str, ShardctlError] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The aliases without an answer: a PAUSE among them may hold later, or never."""
        return (*self.running.values(), *self.todo)

    def send(self, console: Console, deadline: float) -> bool:
        """Send the next command; return whether there is one, and the session took it in time."""
        if not self.todo or time.monotonic() > deadline:
            return False
        alias = self.todo.popleft()
        try:
            console.send(pause_command(alias))
        except PoolerLost as error:
            self.refused[alias] = error
            return False
        self.running[console] = alias
        return True

    def take(self, console: Console, deadline: float) -> bool:
        """Take what has arrived, and go on; return whether there is still an answer to come."""
        try:
            if not console.ready():
                return True
            console.answer()
        except (CommandRefused, PoolerLost) as error:
            self.refused[self.running.pop(console)] = error
            if isinstance(error, PoolerLost):
                return False  # the aliases to do go over the other consoles
        else:
            del self.running[console]
        return self.send(console, deadline)


def pause(
    poolers: Sequence[tuple[Sequence[Console], Iterable[str]]], *, seconds: float
) -> list[Pausing]:
    """Pause aliases on poolers, each over its consoles, and wait at most `seconds`.

    An alias that was answered is paused and no transaction of it runs, as long as no session
    resumes any alias in the meantime: PgBouncer answers all sessions that wait at once, when all
    paused aliases together have no transaction left. So a transaction that goes on holds up
    every alias that was busy when it was asked about, and one console each; idle ones are
    answered at once over the rest. Consoles whose command was not answered are closed; to
    resume takes others then.
    """
    deadline = time.monotonic() + seconds
    jobs = [Pausing(deque(aliases)) for _, aliases in poolers]
    with selectors.DefaultSelector() as selector:
        try:
            for job, (consoles, _) in zip(jobs, poolers, strict=True):
                for console in consoles:
                    if job.send(console, deadline):
                        selector.register(console.fileno(), selectors.EVENT_READ, (console, job))
            while selector.get_map():
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    break
                for key, _ in ready:
                    console, job = key.data
                    if not job.take(console, deadline):
                        selector.unregister(key.fileobj)
        finally:
            # The answers may yet come, and would be taken for others'.
            for job in jobs:
                for console in job.running:
                    console.abandon()
    return jobs


def retry_of(console: Console) -> str:
    """Give the `server_login_retry` in force; empty where it is not to be put back.

    It is not where an earlier moment's is still in force: RELOAD is what ends that.
    """
    config = console.config()
    return "" if was_left_short(config) else str(float(config[_SETTING]))


def was_left_short(config: Mapping[str, str]) -> bool:
    """Report a pooler's settings whether `server_login_retry` is that of such a moment.

    >>> was_left_short({"server_login_retry": "0.01"}), was_left_short({"server_login_retry": "15"})
    (True, False)
    """
    return float(config.get(_SETTING) or 1) <= float(SHORT_S)


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
