"""The format of schema `shardctl`, and its DDL."""

from __future__ import annotations

from importlib import resources

FORMAT = 1
"""What this shardctl reads and writes."""


def ddl() -> str:
    """Give the statements that make schema `shardctl`."""
    return resources.files("shardctl.state").joinpath("schema.sql").read_text(encoding="utf-8")
