"""What every kind of host can do, and how a command fails on it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TAIL = 5
"""Lines of standard error that an error message repeats."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left behind."""

    stdout: str
    stderr: str
    code: int


class Host(Protocol):
    """A machine on which commands run."""

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  # the word that subprocess uses
        timeout: float | None = None,
    ) -> Completed:
        """Run `argv`, never through a shell, and give its output.

        `user` None is whoever shardctl runs as there; `env` adds to the environment;
        `timeout` is in seconds. Raises CommandFailed and CommandTimedOut.
        """


class CommandFailed(ShardctlError):
    """A command that ended with another code than 0, or that could not be begun."""

    def __init__(self, argv: Sequence[str], completed: Completed) -> None:
        said = (completed.stderr.strip() or completed.stdout.strip()).splitlines()[-TAIL:]
        super().__init__(
            "\n  ".join([f"{shlex.join(argv)} failed with code {completed.code}", *said]),
            hint="the lines above are the program's own: correct what they name, then try again",
        )
        self.argv = list(argv)
        self.completed = completed


class CommandTimedOut(ShardctlError):
    """A command that did not end in time and was killed."""

    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        super().__init__(
            f"{shlex.join(argv)} did not end within {seconds:g} s and was killed",
            hint="look at what it waits for (a full or slow disk, a lock), then try again",
        )
        self.argv = list(argv)
        self.seconds = seconds
