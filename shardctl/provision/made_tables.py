"""Which tables migrations leave in a shard, as far as their text shows; pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardctl.postgres import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.state.migrations import Migration

_RELATIONS = ("TABLE", "VIEW")
_BETWEEN = {
    "CREATE": {"OR", "REPLACE", "UNLOGGED", "FOREIGN", "MATERIALIZED", "RECURSIVE"},
    "ALTER": {"FOREIGN", "MATERIALIZED"},
    "DROP": {"FOREIGN", "MATERIALIZED"},
}
_BEFORE_NAMES = {"IF", "NOT", "EXISTS", "ONLY"}
_PROGRAMS = ("DO", "CALL", "SELECT", "EXECUTE")


def left(migrations: Iterable[Migration]) -> frozenset[str]:
    """Name the tables and views that are there when these files have run, in their order."""
    found: set[str] = set()
    for made, gone in _changes(migrations):
        found -= gone
        found |= made
    return frozenset(found)


def ever(migrations: Iterable[Migration]) -> frozenset[str]:
    """Name all tables and views that these files make, also those that they drop or rename."""
    return frozenset(name for made, _ in _changes(migrations) for name in made)


def program(migration: Migration) -> str | None:
    """Give the first word of a statement whose tables only a run shows; None: there is none."""
    words = (statement.first_words for statement in migration.statements())
    return next((first[0] for first in words if first and first[0] in _PROGRAMS), None)


def _changes(migrations: Iterable[Migration]) -> Iterator[tuple[set[str], set[str]]]:
    for migration in migrations:
        for statement in migration.statements():
            yield _change(list(split.lexemes(statement.text)))


def _change(lexemes: list[str]) -> tuple[set[str], set[str]]:
    """Give what a statement makes and what it takes away; names with a schema are not a shard's."""
    verb, *rest = (lexeme.upper() for lexeme in lexemes)
    between = _BETWEEN.get(verb, set())
    kind = next((n for n, word in enumerate(rest, 1) if word not in between), 0)
    if verb not in _BETWEEN or not kind or lexemes[kind].upper() not in _RELATIONS:
        return set(), set()
    start = kind + 1
    while start < len(lexemes) and lexemes[start].upper() in _BEFORE_NAMES:
        start += 1
    named, tail = _names(lexemes[start:])
    if verb == "CREATE":
        return set(islice(named, 1)), set()
    if verb == "DROP":
        return set(), set(named)
    words = [lexeme.upper() for lexeme in tail[:2]]
    if words == ["RENAME", "TO"]:
        return {_folded(name) for name in tail[2:3] if named}, set(named)
    return set(), set(named) if words == ["SET", "SCHEMA"] else set()


def _names(lexemes: list[str]) -> tuple[list[str], list[str]]:
    """Read a list of names; give those without a schema, and the lexemes behind the list."""
    found: list[str] = []
    position = 0
    while position < len(lexemes):
        parts = [lexemes[position]]
        while lexemes[position + 1 : position + 2] == ["."]:
            position += 2
            parts.append(lexemes[position])
        position += 1
        if len(parts) == 1:
            found.append(_folded(parts[0]))
        if lexemes[position : position + 1] != [","]:
            break
        position += 1
    return found, lexemes[position:]


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
