"""Texts that all findings of poolers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import ShardId

NAME = "poolers"
_SHOWN = 3


def shards_of(aliases: Iterable[str], entries: Sequence[Entry]) -> tuple[ShardId, ...]:
    """List the shards to which aliases lead."""
    named = set(aliases)
    return tuple(sorted({s for entry in entries if entry.alias in named for s in entry.shards}))


def brief(aliases: Sequence[str]) -> str:
    """Name the first few of aliases."""
    return listed(aliases, most=_SHOWN)
