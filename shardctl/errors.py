"""The error tree: every error that an operator can cause, with what to do about it.

Each class is a noun, carries its data, and says one line that tells what is wrong and
where (`str(error)`), and one that tells what to do (`hint`). The only boundary that turns
them into text and an exit code is `cli/app.py`. Packages define their own subclasses of
these beside the code that raises them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ShardctlError(Exception):
    """Base of everything that shardctl refuses or fails at; never a bug."""

    exit_code = 1
    """1: refused or found problems, and the fleet is as it was."""

    located = False
    """Whether the message begins with a place in a file, as `FILE:LINE:COLUMN: `."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def parts(self) -> list[ShardctlError]:
        """List the errors to tell one by one: itself, unless it is made of others."""
        return [self]


class UsageError(ShardctlError):
    """Bad usage or a bad topology: nothing was contacted."""

    exit_code = 2


class Unfinished(ShardctlError):
    """Work was begun and not finished; running the command again finishes it."""

    exit_code = 3


class Interrupted(ShardctlError):
    """The operator stopped the command at a safe point."""

    exit_code = 130


def together(errors: Sequence[ShardctlError]) -> ShardctlError:
    """Give the one error there is, or all of them as Problems; there is at least one."""
    return errors[0] if len(errors) == 1 else Problems(list(errors))


class Problems(ShardctlError):
    """Several errors that belong together; each is shown, the gravest decides the exit code."""

    def __init__(self, errors: list[ShardctlError]) -> None:
        super().__init__(f"{len(errors)} problems")
        self.errors = errors
        self.exit_code = max(error.exit_code for error in errors)

    def parts(self) -> list[ShardctlError]:
        """List the errors that it holds."""
        return self.errors
