"""Change scalars of a YAML text in place; every other character stays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError
from shardctl.topology import marks
from shardctl.topology.problems import dotted
from shardctl.topology.syntax import BadYaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.problems import Loc

_BOM = "\ufeff"
# Narrower than YAML: what is plain here is plain for every reader, in braces too.
_PLAIN = re.compile(r"[A-Za-z0-9_/.](?:[A-Za-z0-9_/.+ -]*[A-Za-z0-9_/.+-])?")
_PLAIN_WITH_COMMA = re.compile(r"[A-Za-z0-9_/.](?:[A-Za-z0-9_/.+, -]*[A-Za-z0-9_/.+-])?")
_LIST = re.compile(r"\d+(?:-\d+)?(?:, \d+(?:-\d+)?)+")
_WIDTH = 88
_INDENT = 4
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What some reader takes for something else than text."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


class ScalarNotEditable(ShardctlError):
    """A value cannot be changed in place; holds the path and why."""

    def __init__(self, path: tuple[str, ...], why: str) -> None:
        super().__init__(
            f"cannot change {dotted(path)} in the file: {why}",
            hint="change the file by hand",
        )
        self.path = path
        self.why = why


def replace_scalars(text: str, values: Mapping[tuple[str, ...], str]) -> str:
    """Give `text` with the scalars at these paths replaced.

    `text` is the file decoded, with its line breaks and byte order mark as they are. An old
    scalar's quotes are kept; a plain one gets double quotes only where it must. Long lists
    of shards are folded at the blanks behind their commas. Raises
    ScalarNotEditable where a path has no scalar of its own (missing, empty, a list, a block,
    an alias, behind an anchor or a tag), or where the text is no YAML.
    """
    start = len(_BOM) if text.startswith(_BOM) else 0
    body = text[start:]
    document = read(body, next(iter(values), ()))
    spans = []
    for path, value in values.items():
        part = _part(document, path)
        spans.append((part.mark.index, part.end, _folded(_write(value, part), value, body, part)))
    edited = body
    for first, end, new in sorted(spans, reverse=True):
        edited = edited[:first] + new + edited[end:]
    prove(document, edited, changed=values)
    return text[:start] + edited


def read(text: str, path: tuple[str, ...]) -> marks.Document:
    """Read YAML that is to be edited at `path`; raises ScalarNotEditable where it is none."""
    try:
        document = marks.read(text)
    except BadYaml as error:
        why = f"line {error.mark.line}: {error.message}"
        raise ScalarNotEditable(path, why) from error
    if document.flaws:
        mark, flaw = document.flaws[0]
        why = f"line {mark.line}: {flaw.message}"
        raise ScalarNotEditable(path, why)
    return document


def _part(document: marks.Document, path: tuple[str, ...]) -> marks.Part:
    part = document.values.get(path)
    if part is None:
        raise ScalarNotEditable(path, "the file does not have this key")
    if path in document.aliased:
        raise ScalarNotEditable(path, "the value is an alias")
    if part.items is not None or part.entries is not None:
        raise ScalarNotEditable(path, "the value is not a scalar")
    if not part.bare:
        raise ScalarNotEditable(path, "the value has an anchor or a tag")
    if part.style in {"|", ">"}:
        raise ScalarNotEditable(path, "the value is a block of text")
    if part.end == part.mark.index:
        raise ScalarNotEditable(path, "the value is empty")
    return part


def _write(value: str, part: marks.Part) -> str:
    if part.style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return _double(value) if part.style else scalar(value, flow=part.flow)


def scalar(value: str, *, flow: bool) -> str:
    """Write a new scalar, with double quotes only where it must; `flow` is within braces.

    >>> scalar("0-3, 5", flow=False), scalar("0-3, 5", flow=True), scalar("no", flow=True)
    ('0-3, 5', '"0-3, 5"', '"no"')
    """
    safe = _PLAIN if flow else _PLAIN_WITH_COMMA
    plain = safe.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else _double(value)


def _folded(scalar: str, value: str, text: str, part: marks.Part) -> str:
    """Break a long list of shards behind commas; YAML reads a break as one blank."""
    start = text.rfind("\n", 0, part.mark.index) + 1
    before = part.mark.index - start
    if before + len(scalar) <= _WIDTH or not _LIST.fullmatch(value):
        return scalar
    line = text[start : part.mark.index]
    indent = " " * (len(line) - len(line.lstrip(" ")) + _INDENT)
    lines, width = [""], _WIDTH - before
    for piece in scalar.split(", "):
        if lines[-1] and len(lines[-1]) + len(piece) + 3 > width:
            lines.append("")
            width = _WIDTH - len(indent)
        lines[-1] += f", {piece}" if lines[-1] else piece
    newline = "\r\n" if "\r\n" in text else "\n"
    return f",{newline}{indent}".join(lines)


def _double(value: str) -> str:
    return '"' + "".join(_ESCAPES.get(c) or _printable(c) for c in value) + '"'


def _printable(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def prove(
    before: marks.Document,
    edited: str,
    *,
    changed: Mapping[tuple[str, ...], str | None],
    removed: tuple[str, ...] | None = None,
) -> None:
    """Raise unless the edited text has the new values and nothing else has changed.

    `removed` is a path that it no longer has, with all below.
    """
    path = removed or next(iter(changed), ())
    expected: dict[Loc, str | None] = {
        loc: part.text
        for loc, part in before.values.items()
        if removed is None or loc[: len(removed)] != removed
    }
    new: Mapping[Any, str | None] = changed
    expected.update(new)
    found = {loc: part.text for loc, part in read(edited, path).values.items()}
    if found != expected:
        raise ScalarNotEditable(path, "the edited text would have a different meaning")
