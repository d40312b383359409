"""A topology file into a `Topology`, or everything that is wrong with it at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.topology import aliases, files, placement, rules, wording
from shardctl.topology.build import build
from shardctl.topology.files import MOST_BYTES
from shardctl.topology.problems import Problem, TopologyInvalid, TopologyMissing
from shardctl.topology.spec import FileSection

if TYPE_CHECKING:
    from shardctl.topology.marks import Document
    from shardctl.topology.model import Topology
    from shardctl.topology.problems import Finding, Loc
    from shardctl.topology.syntax import Mark

__all__ = [
    "MOST_BYTES",
    "Problem",
    "TopologyInvalid",
    "TopologyMissing",
    "json_schema",
    "load",
    "parse",
]


def load(path: Path) -> Topology:
    """Read a file; raises TopologyMissing, or TopologyInvalid with every problem."""
    return parse(files.content(path), path)


def parse(content: bytes, path: Path) -> Topology:
    """Read a file's content; relative paths in it are relative to the folder of `path`.

    Raises TopologyInvalid with every problem, by line.
    """
    document = files.document(content, path)
    folder = os.path.abspath(path.parent)  # noqa: PTH100  # pathlib keeps `..`
    content_model, findings = _findings(document, folder)
    if findings or content_model is None:
        raise files.invalid(path, findings)
    return build(content_model, path, Path(folder))


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of the file, for editors."""
    schema = FileSection.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema} | {
        "title": "topology.yaml"
    }


def _findings(
    document: Document, folder: str
) -> tuple[FileSection | None, list[tuple[Mark, Finding]]]:
    data = document.data
    model, found = wording.findings(data)
    secret = list(rules.passwords(data))
    found += rules.shards_and_ids(data)
    found += rules.handles(data)
    found += rules.parameters(data)
    found += placement.ownership(data)
    found += placement.addresses(data)
    found += placement.directories(data, folder)
    found += placement.elsewhere(data)
    found += aliases.aliases(data)
    hidden = {finding.loc for finding in secret} | rules.remnants(data, secret)
    if any(flaw.loc[:1] == ("nodes",) for _, flaw in document.flaws):
        # A node or its shards were skipped: what is missing is unknown.
        found = [f for f in found if f.loc != ("nodes",)]
    kept = [f for f in found if not _within(f.loc, hidden) and not _merged(f, document)]
    return model, document.flaws + [(document.place(f), f) for f in [*secret, *kept]]


def _within(loc: Loc, hidden: set[Loc]) -> bool:
    """Return whether a password is at or above `loc`: nothing more is reported of it."""
    return any(loc[:length] in hidden for length in range(1, len(loc) + 1))


def _merged(finding: Finding, document: Document) -> bool:
    """Return whether a finding only follows from a merge key, which is reported itself."""
    loc = finding.loc
    if "<<" in loc:
        return True
    return finding.message.startswith("missing") and (*loc[:-1], "<<") in document.keys
