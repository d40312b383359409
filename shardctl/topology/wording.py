"""What pydantic finds, with the keys that there are."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from shardctl.topology.problems import Finding, Loc, printable
from shardctl.topology.spec import FileSection

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        return Finding(loc, "missing", "key")
    if kind == "extra_forbidden":
        return Finding(loc, _unknown(loc), "key")
    if kind == "value_error":
        return Finding(loc, str(detail["ctx"]["error"]))
    if kind in ("model_type", "dict_type"):
        return Finding(loc, "expected keys and values")
    return Finding(loc, detail["msg"])


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
