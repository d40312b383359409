"""The error tree: every error that an operator can cause, with what to do about it.

Each error has one line for what is wrong and where (`str(error)`), one for what
to do (`hint`), and has a `code` for programs. The only boundary that turns them into text and
an exit code is `cli/app.py`. A package has a class of its own beside the code that raises it
where a caller catches it or uses its data; all else is a Refused with a code of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ShardctlError(Exception):
    """Base of everything that shardctl refuses or fails at; never a bug."""

    exit_code = 1
    """1: refused or found problems, and the fleet is as it was."""

    code = "error"
    """Its stable name for programs: docs/reference/errors.md lists all of them."""

    located = False
    """Whether the message begins with a place in a file, as `FILE:LINE:COLUMN: `."""

    resumable = True
    """Whether a move that it has stopped can be resumed; otherwise it can only be aborted."""

    def __init_subclass__(cls) -> None:
        """Name the code after the class; a Refused has one of its own."""
        super().__init_subclass__()
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def parts(self) -> list[ShardctlError]:
        """List the errors to show one by one: itself, unless it is made of several."""
        return [self]

    def error_json(self) -> dict[str, str]:
        """Give the shape of docs/reference/json.md."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(ShardctlError):
    """Bad usage or a bad topology: nothing was contacted."""

    exit_code = 2


class Unfinished(ShardctlError):
    """Work was begun and not finished; running the command again finishes it."""

    exit_code = 3


class Refused(ShardctlError):
    """An error that differs only by its code: no caller catches it or uses its data."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Misused(Refused, UsageError):
    """A Refused of bad usage or a bad topology: nothing was contacted."""


class Incomplete(Refused, Unfinished):
    """A Refused of work that was begun; running the command again finishes it."""


class NodesRefused(Refused):
    """A Refused of one node, or the same of several nodes."""

    def __init__(self, code: str, nodes: Sequence[str], what: str, *, hint: str) -> None:
        of = f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"
        super().__init__(code, f"{of}: {what}", hint=hint)
        self.nodes = tuple(nodes)
        self.what = what


def named(where: str, error: ShardctlError) -> ShardctlError:
    """Give an error that begins with where it was, such as `node a`: itself, if it does."""
    if error.message.startswith((f"{where}:", f"{where} ")):
        return error
    placed = Refused(error.code, f"{where}: {error.message}", hint=error.hint)
    placed.exit_code = error.exit_code
    return placed


def incomplete_if(changed: bool, code: str, message: str, *, hint: str) -> Refused:
    """Give an Incomplete where something was changed, else a Refused: all is as it was."""
    return (Incomplete if changed else Refused)(code, message, hint=hint)


class Interrupted(ShardctlError):
    """The operator stopped the command at a safe point."""

    exit_code = 130


def together(errors: Sequence[ShardctlError]) -> ShardctlError:
    """Give the one error there is, or all of them as Problems; there is at least one.

    What is the same of several nodes is said once.
    """
    folded: dict[object, ShardctlError] = {}
    for error in errors:
        key: object = id(error)
        if isinstance(error, NodesRefused):
            key = (error.code, error.what, error.hint)
            if isinstance(before := folded.get(key), NodesRefused):
                nodes = tuple(dict.fromkeys((*before.nodes, *error.nodes)))
                folded[key] = NodesRefused(error.code, nodes, error.what, hint=error.hint)
                continue
        folded[key] = error
    first, *others = folded.values()
    return Problems([first, *others]) if others else first


class Problems(ShardctlError):
    """Several errors that belong together; each is shown, the gravest decides the exit code."""

    def __init__(self, errors: list[ShardctlError], *, exit_code: int | None = None) -> None:
        super().__init__(f"{len(errors)} problems")
        self.errors = errors
        self.exit_code = exit_code or max(error.exit_code for error in errors)

    def parts(self) -> list[ShardctlError]:
        """List the errors that it holds."""
        return self.errors
