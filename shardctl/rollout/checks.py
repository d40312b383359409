"""What must hold between two waves: the structure of shards, the nodes' counters, checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.checks import structure
from shardctl.postgres.connection import connect
from shardctl.rollout import counters
from shardctl.rollout.counters import Counters
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.topology.model import NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last look saw; it is kept with the rollout."""

    counters: Mapping[str, Counters] = field(default_factory=dict)
    """By node."""
    structures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By major version: the digest of a shard after its wave, by the one before."""

    def as_json(self) -> dict[str, Any]:
        """Give what the database keeps."""
        return {
            "counters": {node: list(one) for node, one in self.counters.items()},
            "structures": {major: dict(one) for major, one in self.structures.items()},
        }


def seen(kept: Mapping[str, Any]) -> Seen:
    """Read what the database has kept."""
    return Seen(
        {node: Counters(*one) for node, one in kept.get("counters", {}).items()},
        kept.get("structures", {}),
    )


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a node saw."""

    node: NodeName
    major: str
    counters: Counters
    digests: Mapping[ShardId, str]


def look(
    topology: Topology,
    nodes: Sequence[NodeName],
    shards: Mapping[NodeName, Sequence[ShardId]],
    *,
    command: str,
) -> list[Look]:
    """Look at nodes, and at the structure of some of their shards; raises NodeUnavailable."""

    def work(name: NodeName) -> Look:
        named = {topology.schema(shard): shard for shard in shards.get(name, ())}
        with connect(
            topology.nodes[name],
            topology.database,
            purpose=lock.purpose(command),
            autocommit=True,
        ) as session:
            digests = structure.read_digests(session, named) if named else {}
            major = str(session.info.server_version // 10_000)
            return Look(name, major, counters.look(session), digests)

    return fanout.collect(nodes, work, width=max(1, len(nodes))).every()


def structures(
    known: Mapping[str, Mapping[str, str]], before: Sequence[Look], after: Sequence[Look]
) -> tuple[dict[str, dict[str, str]], list[ShardId]]:
    """Add a wave to the known structures; give the shards that differ from their like. Pure.

    Shards that were alike before their waves must be alike after them.
    """
    found = {major: dict(pairs) for major, pairs in known.items()}
    unlike: list[ShardId] = []
    for earlier, now in zip(before, after, strict=True):
        pairs = found.setdefault(now.major, {})
        for shard, digest in sorted(now.digests.items()):
            was = earlier.digests.get(shard, digest)
            if pairs.setdefault(was, digest) != digest:
                unlike.append(shard)
    return found, unlike


def strangers(known: Mapping[str, Mapping[str, str]], now: Sequence[Look]) -> list[ShardId]:
    """List shards whose structure no earlier wave has left; pure."""
    right = {major: set(pairs.values()) for major, pairs in known.items()}
    return [
        shard
        for one in now
        for shard, digest in sorted(one.digests.items())
        if one.major in right and digest not in right[one.major]
    ]


def jumps(before: Mapping[str, Counters], now: Sequence[Look]) -> Iterator[str]:
    """Say which counters of which nodes have jumped; pure."""
    for one in now:
        if one.node in before:
            for what in counters.jumps(before[one.node], one.counters):
                yield f"node {one.node}: {what}"
