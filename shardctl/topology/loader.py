"""A topology file into a `Topology`, or everything that is wrong with it at once."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shardctl import inputs
from shardctl.errors import Misused
from shardctl.topology import marks, rules
from shardctl.topology.build import build
from shardctl.topology.marks import BadYaml, Mark, decode
from shardctl.topology.problems import Finding, Loc, TopologyInvalid, TopologyMissing, dotted
from shardctl.topology.spec import FileSection

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

__all__ = ["TopologyInvalid", "TopologyMissing", "json_schema", "load", "parse"]

MOST_BYTES = 1 << 20
"""Bytes of the largest file that is read: 8,192 shards on 500 nodes need an eighth of that.

Reading a MiB takes up to 3 s and 140 MB of memory.
"""

_RANGE = re.compile(r" *[0-9]+( *- *[0-9]+)? *")


def load_trusted(path: Path) -> Topology:
    """Read a file whose programs may be run, as `load` does.

    Raises input_untrusted for a file, or a directory of migrations, of which another user decides
    what is in it.
    """
    _require_trusted(path)
    topology = load(path)
    if (folder := topology.database.migrations) is not None:
        for one in (folder, *sorted(folder.glob("*.sql"))):
            _require_trusted(one)
    return topology


def load(path: Path) -> Topology:
    """Read a file; raises TopologyMissing, or TopologyInvalid with every problem."""
    try:
        content = inputs.read(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = (
            "specify a file that you may read with --topology or $SHARDCTL_TOPOLOGY, or create one "
            "with `shardctl sandbox new`"
        )
        raise TopologyMissing(path, why, hint=hint) from error
    return parse(content, path)


def parse(content: bytes, path: Path) -> Topology:
    """Read a file's content; relative paths in it are relative to the folder of `path`.

    Raises TopologyInvalid with every problem, by line.
    """
    try:
        document = marks.read(decode(content))
    except BadYaml as error:
        raise _invalid(path, [(error.mark, Finding((), error.message))]) from error
    if not isinstance(document.data, dict):
        top = Finding((), "expected keys and values, as `shardctl sandbox new` writes them")
        raise _invalid(path, [*document.flaws, (document.place(top), top)])
    folder = os.path.abspath(path.parent)  # noqa: PTH100  # pathlib keeps `..`
    content_model, findings = _findings(document)
    if findings or content_model is None:
        raise _invalid(path, findings)
    return build(content_model, path, Path(folder))


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of the file, for editors."""
    schema = FileSection.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema} | {
        "title": "topology.yaml"
    }


def _require_trusted(path: Path) -> None:
    """Refuse a file or a directory of which another user decides what is in it.

    The path, its directory and the target of a link must belong to root, to this user or to the
    user who called sudo, and other users may not write there. What is missing is not judged. Raises
    input_untrusted.
    """
    absolute = path.absolute()
    real = absolute.resolve()
    for place in dict.fromkeys((absolute.parent, absolute, real.parent, real)):
        try:
            found = place.lstat() if place == absolute else place.stat()
        except OSError:  # reading it reports that
            return
        kind = stat.S_IFMT(found.st_mode)
        owner, group = _name(found)
        # Of a sticky directory, only the owner of what is in it replaces that.
        sticky = kind == stat.S_IFDIR and found.st_mode & stat.S_ISVTX and place != real
        free = kind == stat.S_IFLNK or sticky
        if found.st_uid not in inputs.trusted():
            reason = f"{place} belongs to {owner}"
            hint = (
                "check its content, then use a copy of your own, run "
                f"`chown {os.geteuid()} {shlex.quote(str(place))}`, or run shardctl as {owner}"
            )
        elif inputs.others_may_write(found.st_mode, owner, group) and not free:
            reason = f"other users may write to {place}"
            hint = f"check its content, then run `chmod go-w {shlex.quote(str(place))}`"
        else:
            continue
        said = reason if str(path) in reason else f"{path}: {reason}"
        raise Misused(
            "input_untrusted", f"{said}; shardctl would run its commands and SQL", hint=hint
        )


def _name(found: os.stat_result) -> tuple[str, str]:
    """Name a file's owner and group, by their numbers where they have no names."""
    try:
        return pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        return str(found.st_uid), f"group {found.st_gid}"


def _findings(
    document: marks.Document,
) -> tuple[FileSection | None, list[tuple[Mark, Finding]]]:
    """Validate plain data; give the file's content, or None, and everything wrong with it."""
    data, model = document.data, None
    found: list[Finding] = []
    try:
        model = FileSection.model_validate(data)
    except ValidationError as error:
        found += map(_finding, error.errors(include_url=False))
    secret = list(rules.passwords(data))
    for rule in rules.RULES:
        found += rule(data)
    hidden = {finding.loc for finding in secret} | rules.remnants(data, secret)
    # Of what is at or below a password, nothing more is reported.
    kept = [f for f in found if hidden.isdisjoint(f.loc[: n + 1] for n in range(len(f.loc)))]
    return model, document.flaws + [(document.place(f), f) for f in [*secret, *kept]]


def _finding(detail: Any) -> Finding:
    """Put what pydantic has found into words for the file."""
    loc: Loc = detail["loc"]
    kind = detail["type"]
    if kind == "missing":
        return Finding(loc, "missing", "key")
    if kind == "extra_forbidden":
        said = "unknown key"
        if _RANGE.fullmatch(str(loc[-1])):  # {shards: 0-1,3} is YAML for two keys
            said += '; within { } a list of shards needs quotes: shards: "0-1,3"'
        return Finding(loc, said, "key")
    if kind == "value_error":
        return Finding(loc, str(detail["ctx"]["error"]))
    if kind in ("model_type", "dict_type"):
        return Finding(loc, "expected keys and values")
    return Finding(loc, detail["msg"])


def _invalid(path: Path, findings: list[tuple[Mark, Finding]]) -> TopologyInvalid:
    problems = {
        (mark.line, mark.column, ": ".join(filter(None, (dotted(found.loc), found.message))))
        for mark, found in findings
    }
    return TopologyInvalid(
        tuple(f"{path}:{line}:{column}: {said}" for line, column, said in sorted(problems))
    )
