"""The format of schema `shardctl`, and its DDL."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_TABLE = re.compile(r"\bshardctl\.(\w+)")
FORMAT = 1
"""What this shardctl reads and writes."""


RESTORABLE = ("event", "move", "move_step", "move_progress", "stream", "stream_copy")
"""Tables that may be made again, empty, where they were dropped: they show what was."""


def ddl() -> str:
    """Give the statements that make schema `shardctl`."""
    return resources.files("shardctl.state").joinpath("schema.sql").read_text(encoding="utf-8")


def restoring(missing: Collection[str]) -> list[str]:
    """Give the statements that make some of the RESTORABLE tables again.

    A statement, with the comment before it, belongs to the table of `shardctl` that it names first.
    """
    found = ((_TABLE.search(statement), statement) for statement in ddl().split(";\n"))
    return [statement for table, statement in found if table and table[1] in missing]
