"""Change scalars and entries of a YAML text in place; every other character stays."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml

from shardctl.errors import ShardctlError
from shardctl.topology import marks
from shardctl.topology.marks import BadYaml
from shardctl.topology.problems import dotted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.problems import Loc

_BOM = "\ufeff"
# Narrower than YAML: what is plain here is plain for every reader, in braces too.
_PLAIN = re.compile(r"[A-Za-z0-9_/.](?:[A-Za-z0-9_/.+ -]*[A-Za-z0-9_/.+-])?")
_PLAIN_WITH_COMMA = re.compile(r"[A-Za-z0-9_/.](?:[A-Za-z0-9_/.+, -]*[A-Za-z0-9_/.+-])?")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What some reader takes for something else than text."""


class ScalarNotEditable(ShardctlError):
    """A value cannot be changed in place."""

    def __init__(self, path: tuple[str, ...], why: str) -> None:
        super().__init__(
            f"cannot change {dotted(path)} in the file: {why}",
            hint="change the file by hand",
        )


def replace_scalars(text: str, values: Mapping[tuple[str, ...], str]) -> str:
    """Give `text` with the scalars at these paths replaced.

    `text` is the file decoded, with its line breaks and byte order mark as they are. An old
    scalar's quotes are kept; a plain one gets double quotes only where it must. Raises
    ScalarNotEditable where a path is missing, where anything else would mean something else then
    (as with a list, a block or an alias), or where the text is no YAML.
    """
    start = len(_BOM) if text.startswith(_BOM) else 0
    body = text[start:]
    document = _read(body, values)
    spans = []
    for path, value in values.items():
        part = document.values.get(path)
        if part is None:
            raise ScalarNotEditable(path, "the file does not have this key")
        spans.append((part.mark.index, part.end, _write(value, part)))
    edited = body
    for first, end, new in sorted(spans, reverse=True):
        edited = edited[:first] + new + edited[end:]
    _prove(document, _read(edited, values), values)
    return text[:start] + edited


def with_entry(text: str, section: str, name: str, value: str | None) -> str:
    """Give `text` with an entry at the end of a mapping of its top level, or without it for None.

    `value` is YAML of one line, such as `{host: 10.0.0.3, port: 5432}`. An entry goes with the
    comments in its lines; those above it stay. The caller has to see that nothing else means
    something else then. Raises ScalarNotEditable unless the mapping has lines for each entry.
    """
    start = len(_BOM) if text.startswith(_BOM) else 0
    body = text[start:]
    document = _read(body, {(section, name): ""})
    entries = [loc for loc in document.keys if loc[:-1] == (section,)]
    if not entries or body[document.values[section,].mark.index] == "{":
        raise ScalarNotEditable((section, name), f"{section} does not have one entry a line")
    last = entries[-1] if value is not None else (section, name)
    key = document.keys[last]
    lines = body.split("\n")
    first = body.count("\n", 0, key.index)
    stop = body[: document.values[last].end].rstrip().count("\n") + 1
    while stop > first + 1 and _is_beside(lines[stop - 1], key.column):
        stop -= 1
    if value is None:
        del lines[first:stop]
    else:
        ending = "\r" if lines[first].endswith("\r") else ""
        lines.insert(stop, f"{' ' * (key.column - 1)}{name}: {value}{ending}")
    return text[:start] + "\n".join(lines)


def _is_beside(line: str, column: int) -> bool:
    """Return whether a line is blank, or a comment no deeper than an entry that begins there."""
    text = line.strip()
    return not text or (text.startswith("#") and len(line) - len(line.lstrip()) < column)


def scalar(text: str) -> str:
    """Write a text as a scalar for within braces."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else _double(text)


def _read(text: str, values: Mapping[tuple[str, ...], str]) -> marks.Document:
    try:
        document = marks.read(text)
    except BadYaml as error:
        why = f"line {error.mark.line}: {error.message}"
        raise ScalarNotEditable(next(iter(values), ()), why) from error
    if document.flaws:
        mark, flaw = document.flaws[0]
        why = f"line {mark.line}: {flaw.message}"
        raise ScalarNotEditable(next(iter(values), ()), why)
    return document


def _write(value: str, part: marks.Part) -> str:
    if part.style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    safe = _PLAIN if part.flow else _PLAIN_WITH_COMMA
    if part.style or not safe.fullmatch(value):
        return _double(value)
    return _double(value) if value.lower() in _WORDS else value


def _double(value: str) -> str:
    text: str = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf)
    return text.rstrip("\n")


def _prove(
    before: marks.Document, after: marks.Document, values: Mapping[tuple[str, ...], str]
) -> None:
    """Raise unless the edited text has the new values and nothing else has changed."""
    expected: dict[Loc, str | None] = {path: part.text for path, part in before.values.items()}
    new: Mapping[Any, str] = values
    expected.update(new)
    found = {path: part.text for path, part in after.values.items()}
    if found != expected:
        raise ScalarNotEditable(
            next(iter(values), ()), "the edited text would have a different meaning"
        )
