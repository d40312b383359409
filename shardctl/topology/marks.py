"""YAML to plain data in which every scalar is its own text, the place of each, and what is none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from shardctl.topology.problems import Finding, Loc

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    if "tag" in f"{error.problem} {error.context}":
        return BadYaml(mark, "quote a value that begins with !")
    opened = error.context_mark
    since = f" (begun in line {opened.line + 1})" if opened else ""
    return BadYaml(mark, f"is not valid YAML: {error.problem}{since}")


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 30
_MAX_ALIASED = 10_000
"""Values that aliases may add; a file that needs more is an attack or a mistake."""
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TAG = "tag:yaml.org,2002:"
_CORE_TAGS = frozenset({_TAG + t for t in ("str", "int", "float", "bool", "null", "timestamp")})
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the file: a scalar (`text`, None for null), a list or a mapping."""

    mark: Mark
    end: int
    text: str | None = None
    items: tuple[Part, ...] | None = None
    entries: tuple[tuple[Part, Part], ...] | None = None
    style: str = ""
    flow: bool = False
    """Is within braces or brackets."""
    bare: bool = True
    """Has neither an anchor nor a tag."""


@dataclass(slots=True)
class Document:
    """A file's data, and by path the marks of its keys and the parts of its values."""

    data: Any = None
    empty: bool = True
    keys: dict[Loc, Mark] = field(default_factory=dict)
    values: dict[Loc, Part] = field(default_factory=dict)
    aliased: set[Loc] = field(default_factory=set)
    flaws: list[tuple[Mark, Finding]] = field(default_factory=list)
    """What YAML allows and a topology does not: duplicate keys, merge keys, tags."""

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
    builder = _Builder(text, document)
    try:
        root = builder.stream()
    except yaml.MarkedYAMLError as error:
        raise explain(error, text) from error
    if root is not None:
        document.empty = False
        document.data = _Flattener(document).value(root, (), via_alias=False)
    return document


class _Builder:
    """Makes parts of events, bounded in depth; an alias is the part that it names."""

    def __init__(self, text: str, document: Document) -> None:
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self.document = document
        self.anchors: dict[str, Part | None] = {}

    def stream(self) -> Part | None:
        """Read the one document; None when there is none."""
        root: Part | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._flaw(
                        _mark(event), (), "the file has a second YAML document; only one is allowed"
                    )
                    break
                root = self._part(next(self.events), (), 0, flow=False)
        return root

    def _flaw(self, mark: Mark, loc: Loc, message: str) -> None:
        self.document.flaws.append((mark, Finding(loc, message, "key")))

    def _part(self, event: Any, loc: Loc, depth: int, *, flow: bool) -> Part:
        mark = _mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, mark)
        if depth > _MAX_DEPTH:
            raise BadYaml(mark, f"more than {_MAX_DEPTH} nested levels")
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            part = self._scalar(event, mark, loc, flow=flow)
        elif isinstance(event, yaml.SequenceStartEvent):
            part = self._sequence(event, mark, loc, depth)
        else:
            part = self._mapping(event, mark, loc, depth)
        if event.anchor:
            self.anchors[event.anchor] = part
        return part

    def _alias(self, event: Any, mark: Mark) -> Part:
        if event.anchor not in self.anchors:
            # No name is shown: it may be an unquoted password that begins with *.
            raise BadYaml(mark, "an alias without an anchor; quote a value that begins with *")
        part = self.anchors[event.anchor]
        if part is None:
            raise BadYaml(mark, "an alias inside its own anchor")
        # A wrapper distinguishes an alias from the part itself, and keeps the part's own mark.
        return Part(part.mark, part.end, items=(part,), style="*", bare=False)

    def _tag(self, event: Any, mark: Mark, loc: Loc, known: frozenset[str]) -> None:
        if event.tag and event.tag != "!" and event.tag not in known:
            self._flaw(mark, loc, "YAML tags are not supported; quote a value that begins with !")

    def _scalar(self, event: Any, mark: Mark, loc: Loc, *, flow: bool) -> Part:
        self._tag(event, mark, loc, _CORE_TAGS)
        if _SURROGATE.search(event.value):
            raise BadYaml(mark, "an escape for an invalid character")
        style = event.style or ""
        null = not style and not event.tag and event.value in _NULLS
        text = None if null else event.value
        bare = not event.anchor and not event.tag
        return Part(mark, _end(event), text, style=style, flow=flow, bare=bare)

    def _sequence(self, event: Any, mark: Mark, loc: Loc, depth: int) -> Part:
        self._tag(event, mark, loc, frozenset({_TAG + "seq"}))
        items: list[Part] = []
        while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
            here = (*loc, len(items))
            items.append(self._part(inner, here, depth + 1, flow=bool(event.flow_style)))
        return Part(mark, _end(inner), items=tuple(items))

    def _mapping(self, event: Any, mark: Mark, loc: Loc, depth: int) -> Part:
        self._tag(event, mark, loc, frozenset({_TAG + "map"}))
        flow = bool(event.flow_style)
        entries: dict[str, tuple[Part, Part]] = {}
        while not isinstance(inner := next(self.events), yaml.MappingEndEvent):
            key = self._part(inner, loc, depth + 1, flow=flow)
            # A key's text is its event's: `~`, `on` and `1` are names like any other.
            name = inner.value if isinstance(inner, yaml.ScalarEvent) else None
            here = loc if name is None else (*loc, name)
            value = self._part(next(self.events), here, depth + 1, flow=flow)
            if name is None:
                self._flaw(_mark(inner), loc, "a key must be a single word")
            elif name in entries:
                first = entries[name][0].mark.line
                self._flaw(key.mark, here, f"duplicate key; the first is in line {first}")
            else:
                entries[name] = (key, value)
                if name == "<<":
                    self._flaw(
                        key.mark, here, "merge keys (<<) are not supported; write the keys out"
                    )
        return Part(
            mark,
            _end(inner),
            entries=tuple((_named(key, name), value) for name, (key, value) in entries.items()),
        )


class _Flattener:
    """Makes plain data of parts, and notes the place of each by path."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.aliased = 0

    def value(self, part: Part, loc: Loc, *, via_alias: bool) -> Any:
        if part.style == "*" and part.items:
            return self.value(part.items[0], loc, via_alias=True)
        if via_alias:
            self.document.aliased.add(loc)
            self.aliased += 1
            if self.aliased > _MAX_ALIASED:
                raise BadYaml(part.mark, f"aliases add more than {_MAX_ALIASED} values")
        self.document.values[loc] = part
        if part.items is not None:
            return [
                self.value(item, (*loc, place), via_alias=via_alias)
                for place, item in enumerate(part.items)
            ]
        if part.entries is None:
            return part.text
        data = {}
        for key, value in part.entries:
            here = (*loc, str(key.text))
            self.document.keys[here] = key.mark
            data[key.text] = self.value(value, here, via_alias=via_alias)
        return data


def _mark(event: Any) -> Mark:
    mark = event.start_mark
    return Mark(mark.index, mark.line + 1, mark.column + 1)


def _end(event: Any) -> int:
    return int(event.end_mark.index)


def _named(key: Part, name: str) -> Part:
    return Part(key.mark, key.end, name)
