"""The content of a topology file, and where in it something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.topology import marks
from shardctl.topology.problems import Finding, Problem, TopologyInvalid, TopologyMissing, dotted
from shardctl.topology.syntax import BadYaml, Mark, decode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_BYTES = 1 << 20
"""Bytes of the largest file that is read: 8,192 shards on 500 nodes need an eighth of that.

Reading a MiB takes up to 3 s and 140 MB of memory.
"""

_EMPTY = "the file is empty; create one with `shardctl sandbox new`"


def content(path: Path) -> bytes:
    """Read a file; raises TopologyMissing."""
    hint = (
        "specify a file with --topology or $SHARDCTL_TOPOLOGY, or create one with "
        "`shardctl sandbox new`"
    )
    try:
        return inputs.read(path, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise TopologyMissing(path, "no such file", hint=hint) from None
    except IsADirectoryError:
        hint = f"specify the file in that directory, such as --topology {path / 'topology.yaml'}"
        raise TopologyMissing(path, "is a directory, not a file", hint=hint) from None
    except PermissionError:
        hint = "allow the user who runs shardctl to read it"
        raise TopologyMissing(path, "permission denied", hint=hint) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TopologyMissing(path, f"cannot be read: {why}", hint=hint) from error


def document(text: bytes, path: Path) -> marks.Document:
    """Read a file's YAML, keys and values at its top; raises TopologyInvalid."""
    try:
        found = marks.read(decode(text))
    except BadYaml as error:
        raise invalid(path, [(error.mark, Finding((), error.message))]) from error
    if found.empty or (found.data is None and not found.flaws):
        raise invalid(path, [(Mark(0, 1, 1), Finding((), _EMPTY))])
    if not isinstance(found.data, dict):
        top = Finding(
            (), "expected keys and values at the top level, beginning with `cluster: NAME`"
        )
        raise invalid(path, [*found.flaws, (found.place(top), top)])
    return found


def invalid(path: Path, findings: Iterable[tuple[Mark, Finding]]) -> TopologyInvalid:
    """Make an error of everything that is wrong, by line."""
    problems = {
        Problem(str(path), mark.line, mark.column, dotted(finding.loc), finding.message)
        for mark, finding in findings
    }
    return TopologyInvalid(tuple(sorted(problems)))
