"""The shard key's column of each table, as comment lines in migrations name it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.errors import UsageError, together

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Topology

_LINE = re.compile(r"\s*--\s*shardctl:\s*key\b(.*)")
_NAME = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_COLUMN = re.compile(rf"\s+{_NAME}\.{_NAME}\s*")


class KeyLineInvalid(UsageError):
    """A line that should name a key column and does not, or names a table's second one."""

    def __init__(self, file: Path, line: int, what: str) -> None:
        super().__init__(
            f"{file}:{line}: {what}",
            hint="write `-- shardctl: key TABLE.COLUMN`, once for each table",
        )
        self.file = file
        self.line = line


def key_columns(migrations: Iterable[Migration]) -> dict[str, str]:
    """Map each table whose key column a line `-- shardctl: key TABLE.COLUMN` names to it.

    Names are as in SQL: without double quotes, capitals become small letters. Raises
    KeyLineInvalid, or Problems of them.
    """
    found: dict[str, str] = {}
    problems: list[KeyLineInvalid] = []
    for migration in migrations:
        for number, text in enumerate(migration.text.splitlines(), start=1):
            line = _LINE.fullmatch(text)
            if line is None:
                continue
            column = _COLUMN.fullmatch(line[1])
            if column is None:
                what = f"{line[1].strip()!r} is no TABLE.COLUMN"
                problems.append(KeyLineInvalid(migration.file, number, what))
                continue
            table = _folded(column[1])
            if table in found:
                what = f"the key of table {table} is already said to be {found[table]}"
                problems.append(KeyLineInvalid(migration.file, number, what))
                continue
            found[table] = _folded(column[2])
    if problems:
        raise together(problems)
    return found


def of_cluster(topology: Topology, migrations: Iterable[Migration]) -> dict[str, str]:
    """Map tables to their key columns, as migrations name them, and above these the topology.

    Raises what `key_columns` raises.
    """
    return key_columns(migrations) | dict(topology.database.keys)


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
