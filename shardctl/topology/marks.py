"""YAML to plain data in which every scalar is its own text, the place of each, and what is none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from shardctl.topology.problems import Finding, Loc

_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


def explain(error: Any, text: str) -> BadYaml:
    """Say what PyYAML or libyaml found, and where; no name of a tag, which may be a password."""
    place = error.problem_mark
    mark = Mark(place.index, place.line + 1, place.column + 1)
    if text[mark.index : mark.index + 1] == "\t":
        return BadYaml(mark, "a tab in the indentation; YAML is indented with spaces")
    if isinstance(error, yaml.composer.ComposerError):
        said = "an alias without an anchor, an anchor twice, or a second document"
        return BadYaml(mark, f"{said}; quote a value that begins with * or &")
    if "tag" in f"{error.problem} {error.context}":
        return BadYaml(mark, "quote a value that begins with !")
    opened = error.context_mark
    since = f" (begun in line {opened.line + 1})" if opened else ""
    return BadYaml(mark, f"is not valid YAML: {error.problem}{since}")


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 30
_MAX_ALIASED = 10_000
"""Values that aliases may add; a file that needs more is an attack or a mistake."""
_TAG = "tag:yaml.org,2002:"
_NULL = _TAG + "null"
_TAGS = {
    yaml.SequenceNode: {_TAG + "seq"},
    yaml.MappingNode: {_TAG + "map"},
    yaml.ScalarNode: {
        _TAG + kind
        for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
    },
}
_SURROGATE = re.compile("[\ud800-\udfff]")


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
    empty: bool = True
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
        root = self.values.get(())
        return root.mark if root else Mark(0, 1, 1)


def read(text: str) -> Document:
    """Read YAML without a byte order mark; raises BadYaml where it is none."""
    check_characters(text)
    document = Document()
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise explain(error, text) from error
    except RecursionError as error:  # libyaml has a limit of its own
        raise BadYaml(Mark(0, 1, 1), f"more than {_MAX_DEPTH} nested levels") from error
    if root is not None:
        document.empty = False
        document.data = _Flattener(document).value(root, (), flow=False, via_alias=False)
    return document


class _Flattener:
    """Makes plain data of nodes, bounded in depth, and notes the place of each by path."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._seen: set[int] = set()
        self._aliased = 0

    def value(self, node: Any, loc: Loc, *, flow: bool, via_alias: bool) -> Any:
        """Give the data of a node; one that was seen before is there by an alias."""
        mark = self._checked(node, loc)
        if len(loc) > _MAX_DEPTH:
            raise BadYaml(mark, f"more than {_MAX_DEPTH} nested levels")
        via_alias = via_alias or id(node) in self._seen
        self._seen.add(id(node))
        if via_alias:
            self._aliased += 1
            if self._aliased > _MAX_ALIASED:
                raise BadYaml(mark, f"aliases add more than {_MAX_ALIASED} values")
        scalar = isinstance(node, yaml.ScalarNode)
        text = node.value if scalar and node.tag != _NULL else None
        style = (node.style or "") if scalar else ""
        part = Part(mark, node.end_mark.index, text, style, flow)
        self._document.values[loc] = part
        if scalar:
            return text
        flow = bool(node.flow_style)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc, flow=flow, via_alias=via_alias)
        return [
            self.value(item, (*loc, place), flow=flow, via_alias=via_alias)
            for place, item in enumerate(node.value)
        ]

    def _mapping(self, node: Any, loc: Loc, *, flow: bool, via_alias: bool) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            mark = self._checked(key, loc)
            # A key's text is its node's: `~`, `on` and `1` are names like any other.
            if not isinstance(key, yaml.ScalarNode):
                self._flaw(mark, loc, "a key must be a single word")
                continue
            here = (*loc, key.value)
            if key.value in data:
                first = self._document.keys[here].line
                self._flaw(mark, here, f"duplicate key; the first is in line {first}")
                continue
            self._document.keys[here] = mark
            data[key.value] = self.value(value, here, flow=flow, via_alias=via_alias)
        return data

    def _checked(self, node: Any, loc: Loc) -> Mark:
        """Give a node's mark; raises BadYaml for what is not text."""
        place = node.start_mark
        mark = Mark(place.index, place.line + 1, place.column + 1)
        if node.tag not in _TAGS[type(node)]:
            said = "YAML tags are not supported; quote a value that begins with !"
            self._flaw(mark, loc, said)
        if isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            raise BadYaml(mark, "an escape for an invalid character")
        return mark

    def _flaw(self, mark: Mark, loc: Loc, message: str) -> None:
        self._document.flaws.append((mark, Finding(loc, message, "key")))
