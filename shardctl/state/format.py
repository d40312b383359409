"""The format of schema `shardctl`: its DDL, and the upgrades from older ones."""

from __future__ import annotations

from importlib import resources

from shardctl.errors import ShardctlError

FORMAT = 2
"""What this shardctl reads and writes."""


class FormatTooNew(ShardctlError):
    """The databases were written by a newer shardctl."""

    def __init__(self, node: str, found: int) -> None:
        super().__init__(
            f"node {node}: schema shardctl has format {found}, this shardctl knows up to {FORMAT}",
            hint="use the newer shardctl; this one does not write to that node",
        )
        self.found = found


def scripts(present: int) -> list[str]:
    """Give the scripts that lead from format `present` (0: none is there) to FORMAT, in order."""
    folder = resources.files("shardctl.state")
    return [
        folder.joinpath(f"format_{number}.sql").read_text(encoding="utf-8")
        for number in range(present + 1, FORMAT + 1)
    ]
