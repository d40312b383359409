"""Which tables a repack takes, and in which order."""

from __future__ import annotations

from typing import Any

from shardctl.maintenance.repack import Options, Table, View, judge
from shardctl.topology.model import NodeName, ShardId

MB = 1024 * 1024


def table(name: str, bloat: int | None, **changes: Any) -> Table:
    given: dict[str, Any] = {
        "node": NodeName("a"),
        "shard": ShardId(0),
        "schema": "shard0",
        "name": name,
        "oid": 1,
        "file": 1,
        "size_bytes": 100 * MB,
        "bloat_bytes": bloat,
        "index": f"{name}_pkey",
        "order_by": "id",
        "done_s": None,
    }
    return Table(**given | changes)


def verdicts(
    *tables: Table, free: int | None = None, min_bloat: float = 0.2
) -> list[tuple[str, str]]:
    view = View(tables, (), 150_000, "pg_repack", free, None)
    options = Options(min_bloat, 3600, 1, 60, terminate=False, superuser_check=True)
    return [(one.name, one.verdict) for one in judge({NodeName("a"): view}, options)]


def test_a_recent_repack_counts_more_than_any_estimate() -> None:
    found = verdicts(table("new", 90 * MB, done_s=3599.0), table("old", 80 * MB, done_s=3600.0))
    assert found == [("new", "recent"), ("old", "repack")]


def test_a_table_that_a_session_has_locked_is_left_out_whatever_its_bloat() -> None:
    locked = table("t", None, size_bytes=0)
    assert verdicts(locked, min_bloat=0.0, free=1) == [("t", "unknown")]
    assert verdicts(table("t", None), min_bloat=0.0) == [("t", "repack")]


def test_a_table_takes_twice_its_size_of_free_disk_where_that_is_known() -> None:
    assert verdicts(table("t", 90 * MB), free=200 * MB) == [("t", "repack")]
    assert verdicts(table("t", 90 * MB), free=200 * MB - 1) == [("t", "refused")]
    assert verdicts(table("t", 90 * MB), free=None) == [("t", "repack")]
