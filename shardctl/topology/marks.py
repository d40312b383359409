"""YAML to plain data: every scalar as its own text, the place of each, and what is not allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from shardctl.topology.problems import Finding, Loc


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


_START = Mark(0, 1, 1)


def _mark(place: Any) -> Mark:
    return Mark(place.index, place.line + 1, place.column + 1)


def decode(content: bytes) -> str:
    """Decode a file and drop its byte order mark; raises BadYaml where it is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        said = f"byte {error.start} is not UTF-8; save the file as UTF-8"
        raise BadYaml(_START, said) from error


def explain(error: Any) -> BadYaml:
    """Say what PyYAML or libyaml found, and where; no name of a tag, which may be a password."""
    mark = _mark(error.problem_mark)
    composing = isinstance(error, yaml.composer.ComposerError)
    if composing or "tag" in f"{error.problem} {error.context}":
        return BadYaml(mark, "quote a value that begins with *, & or !; a file is one document")
    opened = error.context_mark
    since = f" (begun in line {opened.line + 1})" if opened else ""
    return BadYaml(mark, f"is not valid YAML: {error.problem}{since}")


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 30
_MOST_VALUES = 100_000
"""Values, with those that aliases repeat; a file that needs more is an attack or a mistake."""
_HALF = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_NULL = _TAG + "null"
_KINDS = ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
"""What a value may be by itself; any other tag was written in the file."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the file: a scalar, whose `text` is None for null, a list or a mapping."""

    mark: Mark
    end: int
    text: str | None
    style: str
    """The quote of a scalar, or what begins a block of text; empty for a plain one."""
    flow: bool
    """Is within braces or brackets."""


@dataclass(slots=True)
class Document:
    """A file's data, and by path the marks of its keys and the parts of its values."""

    data: Any = None
    keys: dict[Loc, Mark] = field(default_factory=dict)
    values: dict[Loc, Part] = field(default_factory=dict)
    flaws: list[tuple[Mark, Finding]] = field(default_factory=list)
    """What YAML allows and a topology does not: duplicate keys, tags."""

    def place(self, finding: Finding) -> Mark:
        """Give the mark of a finding, or of the nearest parent that the file has."""
        loc, at = finding.loc, finding.at
        while loc:
            if loc in self.values and (at == "value" or loc not in self.keys):
                return self.values[loc].mark
            if loc in self.keys:
                return self.keys[loc]
            loc, at = loc[:-1], "key"
        return self.values[()].mark if () in self.values else _START

    def flaw(self, mark: Mark, loc: Loc, message: str) -> None:
        """Note what a topology does not allow."""
        self.flaws.append((mark, Finding(loc, message, "key")))


def read(text: str) -> Document:
    """Read YAML without a byte order mark; raises BadYaml where it is something else."""
    document = Document()
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise explain(error) from error
    except yaml.reader.ReaderError as error:
        said = f"character U+{error.character:04X} at byte {error.position} is not allowed"
        raise BadYaml(_START, said) from error
    except RecursionError as error:  # libyaml has a limit of its own
        raise BadYaml(_START, f"more than {_MAX_DEPTH} nested levels") from error
    if root is not None:
        document.data = _value(document, root, (), flow=False)
    return document


def _value(document: Document, node: Any, loc: Loc, *, flow: bool) -> Any:
    """Give the plain data of a node, and note the place of each part of it by path."""
    mark = _checked(document, node, loc)
    if len(loc) > _MAX_DEPTH:
        raise BadYaml(mark, f"more than {_MAX_DEPTH} nested levels")
    if len(document.values) >= _MOST_VALUES:
        raise BadYaml(mark, f"more than {_MOST_VALUES} values")
    scalar = isinstance(node, yaml.ScalarNode)
    text = node.value if scalar and node.tag != _NULL else None
    style = (node.style or "") if scalar else ""
    document.values[loc] = Part(mark, node.end_mark.index, text, style, flow)
    if scalar:
        return text
    flow = bool(node.flow_style)
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, loc, flow=flow)
    return [
        _value(document, item, (*loc, place), flow=flow) for place, item in enumerate(node.value)
    ]


def _mapping(document: Document, node: Any, loc: Loc, *, flow: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in node.value:
        mark = _checked(document, key, loc)
        # A key's text is its node's: `~`, `on` and `1` are names like any other.
        if not isinstance(key, yaml.ScalarNode):
            document.flaw(mark, loc, "a key must be a single word")
            continue
        here = (*loc, key.value)
        if key.value in data:
            first = document.keys[here].line
            document.flaw(mark, here, f"duplicate key; the first is in line {first}")
            continue
        document.keys[here] = mark
        data[key.value] = _value(document, value, here, flow=flow)
    return data


def _checked(document: Document, node: Any, loc: Loc) -> Mark:
    """Give a node's mark, and note a tag."""
    mark = _mark(node.start_mark)
    if node.tag.removeprefix(_TAG) not in _KINDS:
        said = "YAML tags are not supported; quote a value that begins with !"
        document.flaw(mark, loc, said)
    if isinstance(node.value, str) and _HALF.search(node.value):
        document.flaw(mark, loc, "half of a character is not allowed")  # as libyaml says, too
    return mark
