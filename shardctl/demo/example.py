"""Copies the talk's example into a directory of its own, on free ports."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import shardctl
from shardctl.errors import Refused
from shardctl.topology import edit, loader

_POOLERS = re.compile(r"^poolers:\n(?:[ \t].*\n|\n)+", re.MULTILINE)


def source() -> Path:
    """Return the directory of the example, in a wheel or at the root of a checkout."""
    package = Path(shardctl.__file__).parent
    places = [package / "demo" / "example", package.parent]
    for place in places:
        if (place / "topology.yaml").is_file():
            return place
    raise Refused(
        "example_missing",
        f"cannot find the example's topology.yaml in {' or '.join(map(str, places))}",
        hint="reinstall shardctl, from a wheel or from a checkout",
    )


def lay_out(directory: Path, *, poolers: bool, example: Path | None = None) -> Path:
    """Copy the talk's example, or another, into `directory`; return its topology file.

    Replaces ports that are in use, and removes the poolers on request; the rest of the file stays
    the same.
    """
    example = example or source()
    shutil.copytree(example / "migrations", directory / "migrations")
    text = (example / "topology.yaml").read_text(encoding="utf-8")
    if not poolers:
        text = _POOLERS.sub("", text)
    topology = loader.parse(text.encode(), directory / "topology.yaml")
    wanted: dict[tuple[str, ...], int] = {}
    for node in topology.nodes.values():
        wanted["nodes", node.name, "port"] = node.port
    for pooler in topology.poolers.values():
        wanted["poolers", pooler.name, "port"] = pooler.port
    file = directory / "topology.yaml"
    file.write_text(edit.replace_scalars(text, _free(wanted)), encoding="utf-8")
    return file


def _free(wanted: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], str]:
    """Choose another port for each that is in use; holds all until all are chosen."""
    held: list[socket.socket] = []
    chosen: dict[tuple[str, ...], str] = {}
    try:
        for path, port in wanted.items():
            for candidate in (port, 0):
                probe = socket.socket()
                held.append(probe)
                try:
                    probe.bind(("127.0.0.1", candidate))
                except OSError:
                    continue
                chosen[path] = str(probe.getsockname()[1])
                break
    finally:
        for probe in held:
            probe.close()
    return chosen
