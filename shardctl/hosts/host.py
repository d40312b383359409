"""What every kind of host can do, and how a command fails on it."""

from __future__ import annotations

import logging
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

TAIL = 5
"""Lines of standard error that an error message repeats."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left behind."""

    stdout: str
    stderr: str
    code: int


class How(TypedDict, total=False):
    """How a command runs on a host: see `Host.run`."""

    user: str | None
    env: Mapping[str, str] | None
    input: str | None
    timeout: float | None
    begun: Callable[[str], None] | None


class Host(Protocol):
    """A machine on which commands run."""

    def run(self, argv: Sequence[str], **how: Unpack[How]) -> Completed:
        """Run `argv`, never through a shell, and give its output.

        `user` None is shardctl's login user there; `env` adds to the environment;
        `timeout` is in seconds; `begun` is called with the number of its process group. The output
        is text: UTF-8 with errors replaced, every kind of line end as a line feed. Raises
        CommandFailed and CommandTimedOut; of another machine also HostUnreachable, where nothing
        was begun, and HostLost.
        """

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Rename a file without a command, in a hundredth of the time; False where that cannot be.

        Raises OSError.
        """


def shown(argv: Sequence[str]) -> str:
    r"""Write a command for a person: of a script that it brings along only that there is one.

    >>> shown(["sh", "-c", "cd $1\nexec ls", "sh", "/a b"])
    "sh -c '...' sh '/a b'"
    """
    return " ".join("'...'" if "\n" in word else shlex.quote(word) for word in argv)


class CommandFailed(ShardctlError):
    """A command that ended with another code than 0, or that could not be begun.

    `lines` are what it printed, on standard error if there is something, and `reason` the last.
    """

    def __init__(self, argv: Sequence[str], completed: Completed) -> None:
        self.completed = completed
        self.lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()
        self.reason = [f"the command exited with code {completed.code}", *self.lines][-1]
        super().__init__(
            "\n  ".join([f"{shown(argv)} failed with code {completed.code}", *self.lines[-TAIL:]]),
            hint="fix the cause printed above, then try again",
        )


class CommandTimedOut(ShardctlError):
    """A command that did not end in time and was killed."""

    def __init__(self, argv: Sequence[str], seconds: float, stdout: str = "") -> None:
        super().__init__(
            f"{shown(argv)} did not end within {seconds:g} s and was killed",
            hint="find out what it waits for (a full or slow disk, a lock), then try again",
        )
        self.seconds = seconds
        self.stdout = stdout


class HostUnreachable(ShardctlError):
    """A machine on which nothing can be run now; what was to run has not been begun."""

    def __init__(self, host: str, reason: str, *, hint: str = "") -> None:
        super().__init__(
            f"host {host} cannot be reached by ssh: {reason}",
            hint=hint or f"try: ssh -v {shlex.quote(host)} true",
        )


class HostLost(ShardctlError):
    """A machine that was lost while a command ran there.

    The command may have completed, may be running still, or may be killed by its host: check its
    effect.
    """

    def __init__(self, host: str, argv: Sequence[str], reason: str, stdout: str = "") -> None:
        super().__init__(
            f"host {host}: the connection was lost while {shown(argv)} was running: {reason}",
            hint="the command may have completed or not: when the host is back, check its "
            "effect, then try again",
        )
        self.host = host
        self.reason = reason
        self.stdout = stdout


class SudoRefused(ShardctlError):
    """A user as which the login may not run commands on a machine."""

    def __init__(self, host: str, login: str, user: str, reason: str) -> None:
        super().__init__(
            f"host {host}: {login} may not run commands as {user}: {reason}",
            hint=f"allow it without a password with the sudoers line `{login} ALL=({user}) "
            f"NOPASSWD: ALL` (see `man sudoers`), or log in as {user}",
        )


def succeeded(
    argv: Sequence[str], completed: Completed, user: str | None, began: float, host: str = ""
) -> Completed:
    """Log a command that has ended, and give what it left; raises CommandFailed."""
    logger.debug(
        "ran %s%s%s: code %d, %d ms",
        shlex.join(argv),
        f" as {user}" if user else "",
        f" on {host}" if host else "",
        completed.code,
        (time.monotonic() - began) * 1000,
    )
    if completed.code != 0:
        raise CommandFailed(argv, completed)
    return completed
