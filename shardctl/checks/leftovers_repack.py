"""What killed runs of pg_repack left of tables: it makes every write slower, and grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardctl.postgres.repack_left import Leftover
    from shardctl.topology.model import NodeName, ShardId


def judge(
    check: str, node: NodeName, found: Iterable[Leftover], shards: Mapping[str, ShardId]
) -> Iterator[Finding]:
    """Report each table what is left of it; `shards` are the node's by their schemas."""
    for one in found:
        shard = shards.get(one.schema or "")
        yield Finding(
            check,
            "repack_left",
            Severity.warning,
            actual=f"a killed pg_repack left {', '.join(one.objects)}",
            expected="nothing: the trigger that was left slows every write and fills a log table",
            hint="when no pg_repack is running, run `DROP EXTENSION pg_repack CASCADE`, then "
            "`CREATE EXTENSION pg_repack`",
            node=node,
            shards=() if shard is None else (shard,),
            object=one.name or f"table {one.oid}, which no longer exists",
        )
