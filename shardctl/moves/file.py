"""The topology file after a move: two values change, everything else stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Unfinished
from shardctl.hosts import files
from shardctl.hosts.local import Local
from shardctl.topology import edit, loader, ranges

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.topology.model import Topology


class FileNotEdited(Unfinished):
    """A topology file that was not changed, for it is not what it was or cannot be written."""

    def __init__(self, path: Path, why: str, values: dict[tuple[str, ...], str]) -> None:
        told = ", ".join(f"{'.'.join(path)}: {value}" for path, value in values.items())
        super().__init__(
            f"{path} was not changed: {why}",
            hint=f"the shards have moved; write into it by hand: {told}",
        )
        self.values = values


def is_written(topology: Topology, plan: MovePlan) -> bool:
    """Tell whether the file says already that the shards have moved."""
    try:
        now = loader.load(topology.path)
    except (loader.TopologyInvalid, loader.TopologyMissing):
        return False  # somebody is editing it
    moved = set(plan.shards)
    return plan.target in now.nodes and moved <= set(now.nodes[plan.target].shards)


def write(topology: Topology, plan: MovePlan, after: Topology) -> None:
    """Change the shards of source and target in the file; raises FileNotEdited.

    `topology` is what was read from the file before the move.
    """
    path = topology.path
    values: dict[tuple[str, ...], str] = {
        ("nodes", name, "shards"): ranges.of(after.nodes[name].shards)
        for name in (plan.source, plan.target)
    }
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileNotEdited(path, str(error), values) from error
    try:
        if loader.parse(text.encode(), path) != topology:
            raise FileNotEdited(path, "it was changed since the move read it", values)
        new = edit.replace_scalars(text, values)
        files.write(Local(), path, new)
        files.remove(Local(), Path(f"{path}{files.BACKUP}"))
    except (edit.ScalarNotEditable, loader.TopologyInvalid, files.FileRefused) as error:
        raise FileNotEdited(path, error.message, values) from error
