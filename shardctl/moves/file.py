"""New owners in the topology file: the lists of shards change, everything else stays the same."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.errors import Refused, ShardctlError, Unfinished
from shardctl.hosts import files
from shardctl.hosts.local import Local
from shardctl.moves import plan as planning
from shardctl.moves.plan import PreflightRefused
from shardctl.topology import edit, loader, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from shardctl.moves.plan import MovePlan
    from shardctl.topology.model import NodeName, ShardId, Topology

_LOCK_S, _POLL_S = 10.0, 0.01
_WRITABLE = (
    "write `shards` without anchors and aliases, make the file and its directory writable for "
    "this user, or copy the file to a writable directory and give the copy with --topology"
)


class FileNotEdited(Unfinished):
    """A topology file that has changed since the plan, or cannot be written."""

    def __init__(self, path: Path, why: str, values: dict[tuple[str, ...], str]) -> None:
        lines = ", ".join(f"{'.'.join(path)}: {value}" for path, value in values.items())
        super().__init__(
            f"{path} was not changed: {why}",
            hint=f"the shards have moved: write this into the file by hand: {lines}",
        )


def problems(topology: Topology, plan: MovePlan) -> Iterator[PreflightRefused]:
    """Give what would keep `write` from changing the file; changes nothing."""
    if why := _why_not(topology, _values(topology, planning.after(topology, plan))):
        yield PreflightRefused(
            str(topology.path),
            "topology_file",
            f"the move could not write the new owners into this file: {why}",
            hint=_WRITABLE,
        )


def changed(path: Path) -> Refused:
    """Report a file that is not what a command has read and shown a plan of."""
    return Refused(
        "topology_changed",
        f"{path} changed after shardctl read it; nothing was done",
        hint="run the command again",
    )


def require_unchanged(topology: Topology, plan: MovePlan) -> None:
    """See that the file is still what a move was planned from; raises topology_changed.

    Other moves may have written the shards of other nodes. For a node that was added or removed
    since, poolers and file would be written as before that.
    """
    between = {plan.source, plan.target}
    if _beside(loader.load(topology.path), between) != _beside(topology, between):
        raise changed(topology.path)


def is_written(topology: Topology, plan: MovePlan) -> bool:
    """Return whether the file already has the new owners."""
    try:
        now = loader.load(topology.path)
    except (loader.TopologyInvalid, loader.TopologyMissing):
        return False  # an operator may be editing it
    moved = set(plan.shards)
    return plan.target in now.nodes and moved <= set(now.nodes[plan.target].shards)


def write(topology: Topology, plan: MovePlan) -> None:
    """Write the new owners into the file, unless it has them; raises FileNotEdited.

    `topology` is what was read from the file before the move.
    """
    if not is_written(topology, plan):
        replace(topology, _values(topology, planning.after(topology, plan)))


def placement(topology: Topology, owners: Mapping[ShardId, NodeName]) -> dict[tuple[str, ...], str]:
    """Give the values with which `replace` gives all shards to these owners.

    Raises nodes_unlisted, and file_unwritable.
    """
    values = _values(topology, planning.placed(topology, owners))
    if why := _why_not(topology, values):
        raise Refused(
            "file_unwritable", f"{topology.path}: cannot write owners: {why}", hint=_WRITABLE
        )
    return values


def replace(topology: Topology, values: dict[tuple[str, ...], str]) -> None:
    """Write values into the file from which `topology` was read; raises FileNotEdited.

    Other moves may have written the shards of other nodes since; all else has to be as it was.
    """
    path = topology.path
    named = {place[1] for place in values}

    def edited() -> str:
        text, new = _edited(topology, values)
        if _beside(loader.parse(text.encode(), path), named) != _beside(topology, named):
            raise FileNotEdited(path, "the file changed after shardctl read it", values)
        loader.parse(new.encode(), path)
        return new

    try:
        put(path, edited)
    except FileNotEdited:
        raise
    except _UNFIT as error:
        raise FileNotEdited(path, _reason(error), values) from error


def put(path: Path, edited: Callable[[], str]) -> None:
    """Give the file the text that `edited` returns while no other command replaces the file.

    Raises FileRefused, and what `edited` raises, with nothing done.
    """
    try:
        with _locked(path):
            files.write(Local(), path, edited())
            files.remove(Local(), Path(f"{path.resolve()}{files.BACKUP}"))
    except OSError as error:
        raise files.FileRefused(path, error.strerror or str(error)) from error


def _beside(topology: Topology, named: Collection[str]) -> Topology:
    """Give a topology without the shards of nodes that are not `named`."""
    nodes = {
        name: node if name in named else dataclasses.replace(node, shards=())
        for name, node in topology.nodes.items()
    }
    return dataclasses.replace(topology, nodes=nodes)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other commands from replacing the file meanwhile; raises OSError, if one hangs, too."""
    until = time.monotonic() + _LOCK_S
    while True:
        with path.open("rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
            else:
                # Behind a link, or replaced since, there may be another file now.
                if os.path.samestat(os.fstat(held.fileno()), path.stat()):
                    yield
                    return
        time.sleep(_POLL_S)


def _values(before: Topology, after: Topology) -> dict[tuple[str, ...], str]:
    return {
        ("nodes", node.name, "shards"): ranges.of(node.shards)
        for node in after.nodes.values()
        if node.shards != before.nodes[node.name].shards
    }


def _edited(topology: Topology, values: dict[tuple[str, ...], str]) -> tuple[str, str]:
    """Return the file's text without and with the new values; raises what is in _UNFIT."""
    text = inputs.read(topology.path, loader.MOST_BYTES).decode("utf-8")
    return text, edit.replace_scalars(text, values)


_UNFIT = (OSError, UnicodeDecodeError, ShardctlError)
"""What a file raises that cannot be read, changed or written."""


def _reason(error: Exception) -> str:
    if isinstance(error, ShardctlError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _why_not(topology: Topology, values: dict[tuple[str, ...], str]) -> str | None:
    """Return why values could not be written into the file, or None; changes nothing."""
    path = topology.path
    try:
        _, new = _edited(topology, values)
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        # It is replaced by a new file beside it, behind a link, too.
        with tempfile.TemporaryFile(dir=path.resolve(strict=True).parent) as beside:
            beside.write(new.encode())
    except _UNFIT as error:
        return _reason(error).removeprefix(f"{path}: ")
    return None
