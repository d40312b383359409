"""The format of schema `shardctl`: its DDL, and the upgrades from older ones."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_TABLE = re.compile(r"\bshardctl\.(\w+)")
FORMAT = 5
"""What this shardctl reads and writes."""


RESTORABLE = (
    "event", "move", "move_step", "move_progress", "stream", "stream_copy", "rebalance", "drain",
    "rollout", "migration_begun",
)  # fmt: skip
"""Tables that may be made again, empty, where they were dropped: they show what was."""


def scripts(present: int) -> list[str]:
    """Give the scripts that lead from format `present` (0: none exists) to FORMAT, in order."""
    folder = resources.files("shardctl.state")
    return [
        folder.joinpath(f"format_{number}.sql").read_text(encoding="utf-8")
        for number in range(present + 1, FORMAT + 1)
    ]


def restoring(missing: Collection[str]) -> list[str]:
    """Give the statements that make some of the RESTORABLE tables again.

    A statement, with the comment before it, belongs to the table of `shardctl` that it names first.
    """
    statements = "\n".join(scripts(0)).split(";\n")
    found = ((_TABLE.search(statement), statement) for statement in statements)
    return [statement for table, statement in found if table and table[1] in missing]
