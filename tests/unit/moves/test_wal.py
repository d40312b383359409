"""How much WAL a source may keep for a move, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import service, wal
from shardctl.moves.plan import MovePlan, Options
from shardctl.moves.stopped import MoveStopped, stopped
from shardctl.moves.wal import Wal
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.servers.postgres import free_ports, local_node, local_topology

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
ROOMY = Wal(free_bytes=10_000 * MB, unknown="", keep_bytes=None)


def plan(max_wal_bytes: int | None = None) -> MovePlan:
    options = Options(max_pause_s=5, retain_s=0, max_wal_bytes=max_wal_bytes)
    node = NodeName
    return MovePlan(
        "5f3a9c1e", node("a"), node("c"), (ShardId(2),), ("s",), ("r",), 1, "", {}, options
    )


def refused(seen: Wal, max_wal_bytes: int | None = None) -> list[str]:
    return [problem.code for problem in wal.judge(plan(max_wal_bytes), seen)]


def test_a_source_needs_room_for_what_it_may_keep() -> None:
    assert refused(ROOMY) == []
    assert refused(ROOMY, 10_000 * MB) == []
    assert refused(ROOMY, 10_001 * MB) == ["wal_room"]


def test_room_that_is_not_known_wants_a_limit() -> None:
    unknown = dataclasses.replace(ROOMY, free_bytes=None, unknown="no route to host")
    [problem] = wal.judge(plan(), unknown)
    assert "--max-wal" in (problem.hint or "")
    assert refused(unknown, 64 * MB) == []


def test_a_move_that_stops_says_what_its_source_keeps_until_it_goes_on(tmp_path: Path) -> None:
    ports = free_ports(2)
    nodes = [local_node(tmp_path, *one, range(1)) for one in zip("ac", ports, strict=True)]
    world = service.at_work(local_topology(tmp_path, *nodes), plan(64 * MB), Silent())
    with pytest.raises(MoveStopped) as caught, stopped(world):
        raise ShardctlError("it broke", hint="go on")
    assert caught.value.exit_code == 3
    told = "node a keeps up to 64 MB of WAL for it until its server restarts: then it drops"
    assert told in caught.value.message
    assert "docs/operations/failures.md" in (caught.value.hint or "")
