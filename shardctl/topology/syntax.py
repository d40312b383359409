"""Text that is no YAML, or none that a topology may hold: where and why, in clear words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAB = re.compile(r"^ *\t[ \t]*(?=[^ \t\r\n#])", re.MULTILINE)
TABBED = "a tab in the indentation; YAML is indented with spaces"

MAX_DEPTH = 30
TOO_DEEP = f"more than {MAX_DEPTH} nested levels"

_WORDS = {
    r"maximum nesting depth": TOO_DEEP,  # libyaml since 0.2.6, which reads ahead
    r"mapping (values|keys) are not allowed|unexpected ':'": "unexpected : or ?;"
    " quote a value that contains ': ', or fix the indentation",
    r"could not find expected ':'": "a key without its colon (write `key: value`)",
    r"expected ',' or '[}\]]'": "an opening bracket is not closed, or a comma is missing",
    r"expected (<block end>|key\b|'-' indicator)": "the indentation does not match the lines above",
    r"unexpected end of stream": "a quote is opened and not closed",
    r"unknown escape|escape sequence|hexadecimal|escape code": "an escape that YAML does not know;"
    " in double quotes write a backslash as \\\\",
    r"expected .*node content": "a value is missing, or a bracket has no partner",
    r"cannot start any token": "a value cannot begin with this character; quote it",
    r"sequence entries": "unexpected `-` of a list; fix the indentation",
    r"chomping|indentation indicator|comment or (a )?line break": "after | or > only a comment"
    " is allowed; quote the value",
    r"alphabetic or numeric|whitespace|URI|directive|expected ' '|tag": "quote a value that begins"
    " with & * ! or %",
    r"document start": "unexpected content after the end of the document",
}
"""The messages of PyYAML and libyaml (they differ), and those for people."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text: an index in characters, line and column from 1."""

    index: int
    line: int
    column: int


class BadYaml(Exception):
    """The text cannot be read at all, from the mark on; the loader makes a problem of it."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


def mark_at(text: str, index: int) -> Mark:
    """Give the mark of a character."""
    return Mark(index, text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def decode(content: bytes) -> str:
    """Decode a file and drop its byte order mark; raises BadYaml where it is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise BadYaml(
            mark_at(before, len(before)),
            f"byte {error.start} (0x{content[error.start]:02x}) is not UTF-8;"
            " save the file as UTF-8",
        ) from error


def check_characters(text: str) -> None:
    """Raise BadYaml at the first control character."""
    if found := _CONTROL.search(text):
        mark = mark_at(text, found.start())
        raise BadYaml(
            mark, f"the control character U+{ord(found[0]):04X} is not allowed; remove it"
        )


def tabs(text: str, inside: AbstractSet[int]) -> list[Mark]:
    """List the lines that a tab indents, except lines `inside` a scalar."""
    found = [mark_at(text, match.start()) for match in _TAB.finditer(text)]
    return [mark for mark in found if mark.line not in inside]


def explain(error: Any, text: str) -> BadYaml:
    """Turn an error of PyYAML or libyaml into words for people."""
    place = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if place is None:
        return BadYaml(Mark(0, 1, 1), f"is not valid YAML: {error}".splitlines()[0])
    mark = Mark(place.index, place.line + 1, place.column + 1)
    if text[mark.index : mark.index + 1] == "\t":
        return BadYaml(mark, TABBED)
    near = {mark.line - 1, mark.line}
    if tab := [m for m in tabs(text, frozenset()) if m.line in near]:
        return BadYaml(tab[-1], TABBED)
    complaint = f"{error.problem or ''} {error.context or ''}"
    if mark.index >= len(text.rstrip()) and "flow" in complaint:
        return BadYaml(mark, "the file ends inside a bracket that was opened and not closed")
    words = next((w for pattern, w in _WORDS.items() if re.search(pattern, complaint)), None)
    opened = error.context_mark
    if opened is not None and opened.line + 1 != mark.line:
        since = f" (opened in line {opened.line + 1})"
    else:
        since = ""
    return BadYaml(mark, (words or f"is not valid YAML: {error.problem}") + since)
