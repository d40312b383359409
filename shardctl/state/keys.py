"""The shard key's column of each table, as comment lines in migrations name it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import Misused, together

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Topology

CHECK = "shardctl_key"
"""The name of the constraint that a line with `check` makes on its table, in every shard."""

_LINE = re.compile(r"\s*--\s*shardctl:\s*key\b(.*)")
_NAME = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_COLUMN = re.compile(rf"\s+{_NAME}\.{_NAME}(?:\s+(?:(check)|(dropped)|was\s+{_NAME}\.{_NAME}))?\s*")


def key_line_invalid(file: Path, line: int, what: str) -> Misused:
    """Report a line that should name a key column and does not, or a table's second one."""
    return Misused(
        "key_line_invalid",
        f"{file}:{line}: {what}",
        hint="write `-- shardctl: key TABLE.COLUMN`, once for each table; with `check` at "
        "its end, also for a table whose key is named already; after a rename, "
        "`-- shardctl: key TABLE.COLUMN was OLD_TABLE.OLD_COLUMN`",
    )


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One line `-- shardctl: key TABLE.COLUMN`, at its place in a file, from 1.

    With `check` at its end, a CHECK constraint refuses rows of other shards. `was` are the table
    and the column that had the key before a rename. `dropped` ends what an earlier line began.
    """

    line: int
    table: str
    column: str
    check: bool = False
    was: tuple[str, str] | None = None
    dropped: bool = False

    @property
    def gone(self) -> tuple[str, str] | None:
        """Table and column that hold no key any more from this line on."""
        return (self.table, self.column) if self.dropped else self.was


def key_columns(migrations: Iterable[Migration]) -> dict[str, str]:
    """Map each table whose key column a line `-- shardctl: key TABLE.COLUMN` names to it.

    Names are as in SQL: without double quotes, capitals become small letters. Raises
    key_line_invalid, or Problems of them.
    """
    found: dict[str, KeyLine] = {}
    problems: list[Misused] = []
    for migration in migrations:
        problems += [
            key_line_invalid(migration.file, one.line, wrong)
            for one in _lines(migration, problems)
            if (wrong := _take(found, one))
        ]
    if problems:
        raise together(problems)
    return {table: line.column for table, line in found.items()}


def lines(migration: Migration) -> list[KeyLine]:
    """Give a file's key lines; raises key_line_invalid, or Problems."""
    problems: list[Misused] = []
    found = _lines(migration, problems)
    if problems:
        raise together(problems)
    return found


def checks(migration: Migration) -> list[KeyLine]:
    """Give a file's lines that ask for a constraint; raises key_line_invalid, or Problems."""
    return [one for one in lines(migration) if one.check]


def _take(found: dict[str, KeyLine], one: KeyLine) -> str | None:
    """Change the known keys by one line, or describe what contradicts it."""
    if one.gone:
        table, column = one.gone
        old = found.pop(table, None)
        if old is None or old.column != column:
            return f"no line before it names {table}.{column}"
        if one.dropped:
            return None
        one = replace(one, check=old.check)
    known = found.setdefault(one.table, one)
    if one.check and not known.check and one.column == known.column:
        found[one.table] = one
    elif one is not known:
        what = f"the key of table {one.table} is already {known.column}"
        return what + (" with a check" if known.check and known.column == one.column else "")
    return None


def of_cluster(topology: Topology, migrations: Iterable[Migration]) -> dict[str, str]:
    """Map tables to their key columns, as migrations name them, and above these the topology.

    Raises what `key_columns` raises.
    """
    return key_columns(migrations) | dict(topology.database.keys)


def _lines(migration: Migration, problems: list[Misused]) -> list[KeyLine]:
    """Read a file's key lines; adds those that are malformed to `problems`."""
    found = []
    for number, text in enumerate(migration.text.splitlines(), start=1):
        line = _LINE.fullmatch(text)
        if line is None:
            continue
        column = _COLUMN.fullmatch(line[1])
        if column is None:
            what = f"expected TABLE.COLUMN, found {line[1].strip()!r}"
            problems.append(key_line_invalid(migration.file, number, what))
            continue
        table, name, check, dropped, *was = column.groups()
        found.append(
            KeyLine(
                number,
                _folded(table),
                _folded(name),
                check=check is not None,
                was=(_folded(was[0]), _folded(was[1])) if was[0] else None,
                dropped=dropped is not None,
            )
        )
    return found


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
