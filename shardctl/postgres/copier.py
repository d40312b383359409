"""What a way of copying a node is: the program that is run on the target's host, and its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.source import Source


@dataclass(frozen=True, slots=True)
class Program:
    """A program that fills `clone.copy`, and the small files beside the copy that it reads."""

    argv: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copier:
    """A way of copying: its name for people, and what makes the program.

    `program` takes the clone, its source, a session with that, and the rate as pg_basebackup
    takes it. The program streams WAL from the move's slot and has the slot's name in all its
    replication sessions: by that its progress is found, and it is ended.
    """

    name: str
    program: Callable[[Clone, Source, Connection, str | None], Program]
