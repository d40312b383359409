"""Read-only shards: a note, and an error where only some of their tables refuse writes."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from shardctl.access import read_only
from shardctl.checks.findings import Finding, Severity
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.access.read_only import Mark
    from shardctl.topology.model import NodeName, ShardId


def judge(check: str, seen: Mapping[NodeName, Mapping[ShardId, Mark]]) -> Iterator[Finding]:
    """Find read-only shards of each node: those that are alike together."""
    for node, marks in seen.items():
        for mark, shards in read_only.alike(marks).items():
            yield _finding(check, node, mark, shards)


def _finding(check: str, node: NodeName, mark: Mark, shards: tuple[ShardId, ...]) -> Finding:
    off = f"`shardctl read-only off {ranges.of(shards)}`"
    since = f"since {mark.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, " if mark.since else ""
    if mark.whole:
        return Finding(
            check,
            "read_only",
            Severity.note,
            actual=f"writes are refused {since}by {mark.by}",
            expected="read-only for as long as required",
            hint=f"run {off} to accept writes again",
            node=node,
            shards=shards,
        )
    return Finding(
        check,
        "read_only_in_part",
        Severity.error,
        actual=f"{mark.refusing} of {mark.tables} tables refuse writes, {since}by {mark.by}",
        expected="all tables of a shard refuse writes, or none",
        hint=f"run `shardctl read-only on {ranges.of(shards)}` to finish it, or {off} to undo it",
        node=node,
        shards=shards,
    )
