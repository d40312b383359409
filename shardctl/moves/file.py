"""The topology file after a move: two values change, everything else stays the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Unfinished
from shardctl.hosts import files
from shardctl.moves import plan as planning
from shardctl.moves.refusals import PreflightRefused
from shardctl.provision import topology_file
from shardctl.topology import edit, loader

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.moves.plan import MovePlan
    from shardctl.topology.model import Topology


class FileNotEdited(Unfinished):
    """A topology file that has changed since the plan, or cannot be written."""

    def __init__(self, path: Path, why: str, values: dict[tuple[str, ...], str]) -> None:
        lines = ", ".join(f"{'.'.join(path)}: {value}" for path, value in values.items())
        super().__init__(
            f"{path} was not changed: {why}",
            hint=f"the shards have moved: write this into the file by hand: {lines}",
        )
        self.why = why
        self.values = values


def problems(topology: Topology, plan: MovePlan) -> list[PreflightRefused]:
    """Return what would keep `write` from changing the file; changes nothing."""
    path = topology.path
    try:
        _, new = _edited(topology, _values(plan, planning.after(topology, plan)))
        why = topology_file.unwritable(path.resolve(strict=True), len(new.encode()))
    except FileNotEdited as error:
        why = error.why
    except OSError as error:
        why = error.strerror or str(error)
    if not why:
        return []
    reason = why.removeprefix(f"{path}: ")
    refusal = PreflightRefused(
        str(path),
        "topology_file",
        f"the move could not write the new owners into this file: {reason}",
        hint="make the file and its directory writable for this user, or copy the file to a "
        "writable directory and give the copy with --topology",
    )
    return [refusal]


def is_written(topology: Topology, plan: MovePlan) -> bool:
    """Return whether the file already has the new owners."""
    try:
        now = loader.load(topology.path)
    except (loader.TopologyInvalid, loader.TopologyMissing):
        return False  # an operator may be editing it
    moved = set(plan.shards)
    return plan.target in now.nodes and moved <= set(now.nodes[plan.target].shards)


def write(topology: Topology, plan: MovePlan, after: Topology) -> None:
    """Write the new owners into the file, unless it has them; raises FileNotEdited.

    `topology` is what was read from the file before the move.
    """
    if is_written(topology, plan):
        return
    path, values = topology.path, _values(plan, after)
    text, new = _edited(topology, values)
    try:
        if loader.parse(text.encode(), path) != topology:
            raise FileNotEdited(path, "the file changed after the move read it", values)
        topology_file.replace(path, new)
    except (loader.TopologyInvalid, files.FileRefused) as error:
        raise FileNotEdited(path, error.message, values) from error


def _values(plan: MovePlan, after: Topology) -> dict[tuple[str, ...], str]:
    return {
        ("nodes", name, "shards"): topology_file.value(after.nodes[name].shards)
        for name in (plan.source, plan.target)
    }


def _edited(topology: Topology, values: dict[tuple[str, ...], str]) -> tuple[str, str]:
    """Return the file's text without and with the new values; raises FileNotEdited."""
    path = topology.path
    try:
        text = topology_file.text(path)
        return text, edit.replace_scalars(text, values)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise FileNotEdited(path, why or str(error), values) from error
    except edit.ScalarNotEditable as error:
        raise FileNotEdited(path, error.message, values) from error
