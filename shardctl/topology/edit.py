"""Change scalars and entries of a YAML text in place; every other character stays."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import yaml

from shardctl.errors import ShardctlError
from shardctl.topology import marks
from shardctl.topology.marks import BadYaml
from shardctl.topology.problems import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

    `text` is the file decoded, with its line breaks and byte order mark as they are. A scalar in
    quotes gets double ones; a plain one only where it must. Raises ScalarNotEditable where a path
    is missing, where anything else would mean something else then (as with a list, a block or an
    alias), or where the text is not YAML.
    """
    body = text.removeprefix(_BOM)
    document = _read(body, values)
    spans = []
    for path, value in values.items():
        part = document.values.get(path)
        if part is None:
            raise ScalarNotEditable(path, "the file does not have this key")
        new = _double(value) if part.style else scalar(value, flow=part.flow)
        spans.append((part.mark.index, part.end, new))
    edited = body
    for first, end, new in sorted(spans, reverse=True):
        edited = edited[:first] + new + edited[end:]
    expected: dict[Loc, str | None] = {path: part.text for path, part in document.values.items()}
    expected.update(values.items())  # nothing else may have changed
    if {path: part.text for path, part in _read(edited, values).values.items()} != expected:
        raise ScalarNotEditable(next(iter(values)), "the edited text would have another meaning")
    return text.removesuffix(body) + edited


def with_entry(text: str, section: str, name: str, value: str | None) -> str:
    """Give `text` with an entry at the end of a mapping of its top level, or without it for None.

    `value` is YAML of one line, such as `{host: 10.0.0.3, port: 5432}`. An entry goes with the
    comments in its lines; those above it stay. The caller has to see that nothing else means
    something else then. Raises ScalarNotEditable unless the mapping has lines for each entry.
    """
    body = text.removeprefix(_BOM)
    document = _read(body, [(section, name)])
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
    return text.removesuffix(body) + "\n".join(lines)


def _is_beside(line: str, column: int) -> bool:
    """Return whether a line is blank, or a comment no deeper than an entry that begins there."""
    text = line.strip()
    return not text or (text.startswith("#") and len(line) - len(line.lstrip()) < column)


def scalar(text: str, *, flow: bool = True) -> str:
    """Write a text as a scalar, with `flow` for within braces."""
    plain = (_PLAIN if flow else _PLAIN_WITH_COMMA).fullmatch(text)
    return text if plain and text.lower() not in _WORDS else _double(text)


def _read(text: str, paths: Iterable[tuple[str, ...]]) -> marks.Document:
    try:
        return marks.read(text)
    except BadYaml as error:
        why = f"line {error.mark.line}: {error.message}"
        raise ScalarNotEditable(next(iter(paths), ()), why) from error


def _double(value: str) -> str:
    text: str = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf)
    return text.rstrip("\n")
