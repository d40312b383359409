"""A finding of `verify` in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.cli import picture

if TYPE_CHECKING:
    from shardctl.checks.findings import Finding


def subject(finding: Finding) -> str:
    """Name the pooler, the node and the shards of a finding."""
    from shardctl.topology import ranges

    parts = []
    if finding.pooler:
        parts.append(f"pooler {finding.pooler}")
    if finding.node:
        parts.append(f"node {finding.node}")
    if finding.shards:
        shards = picture.shorten(ranges.of(finding.shards)).replace(",", ", ")
        count = len(finding.shards)
        parts.append(f"shard {shards}" if count == 1 else f"{count:,} shards ({shards})")
    return ", ".join(parts) or "fleet"


def difference(finding: Finding) -> str:
    """Describe what was expected and what was found, in one line."""
    what = f"{finding.object}: " if finding.object else ""
    if finding.severity == "note":
        return f"{what}{finding.actual}"
    return f"{what}expected {finding.expected}, found {finding.actual}"
