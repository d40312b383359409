"""What pydantic finds, in the words of the product."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from shardctl.topology.problems import Finding, Loc, printable, shown
from shardctl.topology.spec import FileSection

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHAPES = {
    "model_type": "keys and values",
    "dict_type": "keys and values",
    "list_type": "a list such as [a, b]",
    "literal_error": "a single value",
    "bool_type": "a single value",
}
_RANGE = re.compile(r" *[0-9]+( *- *[0-9]+)? *")


def findings(data: Any) -> tuple[FileSection | None, list[Finding]]:
    """Validate plain data; gives the file's content, or None and everything wrong with it."""
    try:
        return FileSection.model_validate(data), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [_finding(detail) for detail in details]


def _finding(detail: Any) -> Finding:
    loc: Loc = detail["loc"]
    kind = detail["type"]
    if kind == "missing":
        return Finding(loc, f"missing: {_described(loc)}", "key")
    if kind == "extra_forbidden":
        return Finding(loc, _unknown(loc), "key")
    return Finding(loc, _wrong(kind, detail["input"], detail.get("ctx", {}), _described(loc)))


def _wrong(kind: str, value: object, context: Any, description: str) -> str:
    """Describe what is wrong with a value, by pydantic's kind of error."""
    problem = str(context["error"]) if kind == "value_error" else ""
    if value is None or kind == "too_short" or problem == "is empty":
        return f"is empty; expected {description}"
    if problem:
        return problem
    if kind == "literal_error" and isinstance(value, str):
        expected = context["expected"].replace("'", "")
        return f"unknown value {shown(value)}; write {expected}"
    if kind == "bool_parsing":
        return f"expected true or false, found {shown(value)}"
    wanted = _SHAPES.get(kind, description)
    return f"expected {wanted}, found {_kind(value)}"


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "keys and values"
    return "a list" if isinstance(value, list) else "a single value"


def _unknown(loc: Loc) -> str:
    key = str(loc[-1])
    known = _keys(loc[:-1])
    # {shards: 0-1,3} is YAML for two keys; no one writes that on purpose.
    if _RANGE.fullmatch(key) and "shards" in known:
        return 'unknown key; within { } a list of shards needs quotes: shards: "0-1,3"'
    return "unknown key; " + suggestion(key, known)


def suggestion(key: str, known: Iterable[str]) -> str:
    """Name the nearest known key, or all."""
    names = list(known)
    near = difflib.get_close_matches(printable(key.lower()), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(names)


def _section(loc: Loc) -> type[BaseModel] | None:
    """Find the section whose keys are at a path; None where keys are free or unknown."""
    section: type[BaseModel] = FileSection
    rest = list(loc)
    while rest:
        info = _fields(section).get(str(rest.pop(0)))
        inner = _models(info.annotation) if info else None
        if info is None or inner is None:
            return None
        if get_origin(info.annotation) is dict:
            if not rest:
                return None
            rest.pop(0)
        section = inner
    return section


def _models(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for inner in get_args(annotation) if (m := _models(inner))), None)


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info for name, info in section.model_fields.items()}


def _keys(loc: Loc) -> list[str]:
    section = _section(loc)
    return list(_fields(section)) if section else []


def _described(loc: Loc) -> str:
    """Describe what belongs at a path, or nearest above it."""
    while loc:
        parent, own = _section(loc[:-1]), _section(loc)
        info = _fields(parent).get(str(loc[-1])) if parent else None
        if info is not None:
            return str(info.description)
        if own is not None and own.__doc__:
            return own.__doc__[0].lower() + own.__doc__[1:].splitlines()[0].rstrip(".")
        loc = loc[:-1]
    return "a known key"
