"""What pydantic finds, in words for the file."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import ValidationError

from shardctl.topology.problems import Finding, Loc
from shardctl.topology.spec import FileSection, Section

_RANGE = re.compile(r" *[0-9]+( *- *[0-9]+)? *")
_KEYS = {
    info.alias or name
    for section in Section.__subclasses__()
    for name, info in section.model_fields.items()
}
"""The keys of all sections."""


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
        return Finding(loc, _unknown(str(loc[-1])), "key")
    if kind == "value_error":
        return Finding(loc, str(detail["ctx"]["error"]))
    if kind in ("model_type", "dict_type"):
        return Finding(loc, "expected keys and values")
    return Finding(loc, detail["msg"])


def _unknown(key: str) -> str:
    # {shards: 0-1,3} is YAML for two keys; no one writes that on purpose.
    if _RANGE.fullmatch(key):
        return 'unknown key; within { } a list of shards needs quotes: shards: "0-1,3"'
    near = difflib.get_close_matches(key.lower(), _KEYS - {key}, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"
