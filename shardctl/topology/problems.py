"""What can be wrong with a topology file, as errors that carry their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardctl.errors import ShardctlError, UsageError
from shardctl.printable import one_line

if TYPE_CHECKING:
    from pathlib import Path

Loc = tuple[str | int, ...]
"""The connection to a value in the file: keys, and positions in lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a path, not yet joined with the place in the file."""

    loc: Loc
    message: str
    at: Literal["key", "value"] = "value"


class TopologyProblem(UsageError):
    """One problem of a file, as an error of its own."""

    located = True


class TopologyInvalid(UsageError):
    """The file was read and does not describe a cluster; holds every problem, by line.

    Each begins with its place, `FILE:LINE:COLUMN: `; lines and columns count from 1.
    """

    located = True

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def parts(self) -> list[ShardctlError]:
        """List the problems."""
        return [TopologyProblem(problem) for problem in self.problems]


class TopologyMissing(UsageError):
    """There is no file to read, or it cannot be read."""

    def __init__(self, path: Path, why: str, *, hint: str) -> None:
        super().__init__(f"{path}: {why}", hint=hint)


def shown(value: object) -> str:
    r"""Quote a value for a message: one line, printable, not long.

    >>> shown("a\nb"), shown("x" * 50)
    ("'a\\nb'", "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'")
    """
    text = str(value)
    return repr(text if len(text) <= 40 else text[:40] + "...")


def dotted(loc: Loc) -> str:
    """Write a path as people do.

    >>> dotted(("nodes", "c", "port")), dotted(("database", "app_roles", 1))
    ('nodes.c.port', 'database.app_roles.1')
    """
    return one_line(".".join(str(part)[:80] for part in loc))
