"""The shard key's column of each table, as comment lines in migrations name it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Misused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Topology

CHECK = "shardctl_key"
"""The name of the constraint that a line with `check` makes on its table, in every shard."""

_LINE = re.compile(r"\s*--\s*shardctl:\s*key\b(.*)")
_NAME = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_COLUMN = re.compile(rf"\s+{_NAME}\.{_NAME}(?:\s+(check))?\s*")


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One line `-- shardctl: key TABLE.COLUMN`, at its place in a file, from 1.

    With `check` at its end, a CHECK constraint refuses rows of other shards.
    """

    line: int
    table: str
    column: str
    check: bool = False


def key_columns(migrations: Iterable[Migration]) -> dict[str, str]:
    """Map each table whose key column a line `-- shardctl: key TABLE.COLUMN` names to it.

    A later line replaces an earlier one. Names are as in SQL: without double quotes, capitals
    become small letters. Raises key_line_invalid.
    """
    return {one.table: one.column for migration in migrations for one in lines(migration)}


def lines(migration: Migration) -> list[KeyLine]:
    """Give a file's key lines; raises key_line_invalid."""
    found: list[KeyLine] = []
    for number, text in enumerate(migration.text.splitlines(), start=1):
        if (line := _LINE.fullmatch(text)) is None:
            continue
        if (column := _COLUMN.fullmatch(line[1])) is None:
            raise Misused(
                "key_line_invalid",
                f"{migration.file}:{number}: expected TABLE.COLUMN, found {line[1].strip()!r}",
                hint="write `-- shardctl: key TABLE.COLUMN`, or `-- shardctl: key TABLE.COLUMN "
                "check`; a later line names another column of the table",
            )
        table, name, check = column.groups()
        found.append(KeyLine(number, _folded(table), _folded(name), check=check is not None))
    return found


def checks(migration: Migration) -> list[KeyLine]:
    """Give a file's lines that ask for a constraint; raises key_line_invalid."""
    return [one for one in lines(migration) if one.check]


def of_cluster(topology: Topology, migrations: Iterable[Migration]) -> dict[str, str]:
    """Map tables to their key columns, as migrations name them, and above these the topology.

    Raises key_line_invalid.
    """
    return key_columns(migrations) | dict(topology.database.keys)


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
