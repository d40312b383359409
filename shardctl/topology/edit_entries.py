"""Add, remove and rename an entry of a mapping in a YAML text; every other character stays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.topology import edit, marks
from shardctl.topology.edit import ScalarNotEditable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.topology.marks import Part

    Path = tuple[str, ...]
    Value = str | Mapping[str, str]

_BOM = "\ufeff"
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(\r?\n|\Z)")


def add_entry(text: str, path: Path, values: Mapping[str, Value]) -> str:
    """Give `text` with a new entry behind the last one of the mapping above `path`.

    The entry is one line: `path`'s last part, and `values` in braces. Raises ScalarNotEditable
    where the text has no such mapping, or has the entry.
    """
    bom, body = _split(text)
    document = edit.read(body, path)
    mapping = _mapping(document, path[:-1])
    if path in document.values:
        raise ScalarNotEditable(path, "the file has this key already")
    line = f"{edit.scalar(path[-1], flow=True)}: {_braces(values)}"
    key, value = _last(mapping, path)
    end = _end(value)
    if key.flow:
        edited = f"{body[:end]}, {line}{body[end:]}"
    else:
        newline = "\r\n" if "\r\n" in body else "\n"
        indent = body[body.rfind("\n", 0, key.mark.index) + 1 : key.mark.index]
        if indent.strip():
            raise ScalarNotEditable(path, "the entry before does not begin its line")
        end = _line_end(body, end, path)
        head = body[:end] if body[:end].endswith("\n") else body[:end] + newline
        edited = f"{head}{indent}{line}{newline}{body[end:]}"
    edit.prove(document, edited, changed=_leaves(path, values))
    return bom + edited


def remove_entry(text: str, path: Path) -> str:
    """Give `text` without an entry and its lines; comments in other lines stay.

    Raises ScalarNotEditable where there is no such entry, or it shares a line with another.
    """
    bom, body = _split(text)
    document = edit.read(body, path)
    mapping = _mapping(document, path[:-1])
    entries = list(mapping.entries or ())
    names = [str(key.text) for key, _ in entries]
    if path[-1] not in names:
        raise ScalarNotEditable(path, "the file does not have this key")
    if len(entries) == 1:
        raise ScalarNotEditable(path, "it is the only entry")
    at = names.index(path[-1])
    key, value = entries[at]
    if key.flow:
        # From the entry before to this one's end, or to the entry behind.
        first = _end(entries[at - 1][1]) if at else key.mark.index
        last = _end(value) if at else entries[1][0].mark.index
    else:
        first = body.rfind("\n", 0, key.mark.index) + 1
        last = _line_end(body, _end(value), path)
        if body[first : key.mark.index].strip():
            raise ScalarNotEditable(path, "the entry does not begin its line")
    edited = body[:first] + body[last:]
    edit.prove(document, edited, changed={}, removed=path)
    return bom + edited


def rename_entry(text: str, path: Path, name: str) -> str:
    """Give `text` with another name of an entry; raises ScalarNotEditable."""
    bom, body = _split(text)
    document = edit.read(body, path)
    for key, _ in _mapping(document, path[:-1]).entries or ():
        if key.text == path[-1]:
            break
    else:
        raise ScalarNotEditable(path, "the file does not have this key")
    new = (*path[:-1], name)
    if new in document.values:
        raise ScalarNotEditable(new, "the file has this key already")
    edited = body[: key.mark.index] + edit.scalar(name, flow=True) + body[key.end :]
    moved = {
        (*new, *map(str, loc[len(path) :])): part.text
        for loc, part in document.values.items()
        if loc[: len(path)] == path
    }
    edit.prove(document, edited, changed=moved, removed=path)
    return bom + edited


def _split(text: str) -> tuple[str, str]:
    """Give a byte order mark, if there is one, and the rest."""
    return (_BOM, text[len(_BOM) :]) if text.startswith(_BOM) else ("", text)


def _mapping(document: marks.Document, path: Path) -> Part:
    part = document.values.get(path)
    if part is None or not part.entries:
        raise ScalarNotEditable(path, "the file has no entries there")
    if path in document.aliased:
        raise ScalarNotEditable(path, "the value is an alias")
    return part


def _last(mapping: Part, path: Path) -> tuple[Part, Part]:
    if not mapping.entries:  # pragma: no cover  # `_mapping` has seen to it
        raise ScalarNotEditable(path, "the file has no entries there")
    return mapping.entries[-1]


def _end(part: Part) -> int:
    """Give where the text of a value ends; of a block, YAML's own end is behind later comments."""
    ends = [_end(inner) for inner in _inner(part)]
    return part.end if part.braces or not ends else max(ends)


def _inner(part: Part) -> Iterator[Part]:
    for key, value in part.entries or ():
        yield key
        yield value
    yield from part.items or () if part.style != "*" else ()


def _line_end(text: str, at: int, path: Path) -> int:
    """Give where the line behind a value ends, with its comment and its line break."""
    if at and text[at - 1] == "\n":  # a block of text ends with its line
        return at
    rest = _REST_OF_LINE.match(text, at)
    if rest is None:
        raise ScalarNotEditable(path, "more follows in the line of the entry before")
    return rest.end()


def _braces(values: Mapping[str, Value]) -> str:
    parts = (
        f"{edit.scalar(key, flow=True)}: "
        + (edit.scalar(value, flow=True) if isinstance(value, str) else _braces(value))
        for key, value in values.items()
    )
    return "{" + ", ".join(parts) + "}"


def _leaves(path: Path, values: Mapping[str, Value]) -> dict[Path, str | None]:
    """Give the texts that a new entry has, by path; None for a mapping."""
    found: dict[Path, str | None] = {path: None}
    for key, value in values.items():
        if isinstance(value, str):
            found[(*path, key)] = value
        else:
            found |= _leaves((*path, key), value)
    return found
