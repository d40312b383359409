"""What is left of a group of moves: what is done is not begun again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.fanout import Silent
from shardctl.fleet import group, rebalance
from shardctl.fleet.group import Group, Part, Work
from shardctl.fleet.rebalance import NodeShare, Plan
from shardctl.moves.plan import Options
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path

TOPOLOGY = """
cluster: photos
shards: {count: 4}
database: {name: app, migrations: .}
nodes:
  a: {host: 127.0.0.1, port: 1, shards: 2-3}
  b: {host: 127.0.0.1, port: 2, shards: 0-1}
"""


def part(source: str, target: str, *shards: int) -> Part:
    return Part(NodeName(source), NodeName(target), tuple(map(ShardId, shards)))


def test_what_is_done_is_not_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    topology = loader.load(file)
    done, half = part("a", "b", 0), part("b", "a", 1, 2)
    found = Group("5f3a9c1e", (done, half))
    assert found.left(topology) == [half]
    assert half.left(topology) == [1]
    # Another terminal may have finished it since: no node is asked, and none runs.
    work = Work(Silent(), print)
    group.carry_out(file, found, done, Options(5.0, 0.0), work)
    with raises_code("plan_outdated"):
        part("b", "c", 3).left(topology)


def test_a_plan_of_a_fleet_at_other_addresses_is_refused(tmp_path: Path) -> None:
    """As one of staging, whose cluster has the same name and the same map."""
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    topology = loader.load(file)

    def plan(port: int) -> Plan:
        nodes = (("a", 1, (2, 3)), ("b", port, (0, 1)))
        shares = tuple(
            NodeShare(NodeName(n), f"127.0.0.1:{p}", 1.0, None, tuple(map(ShardId, shards)))
            for n, p, shards in nodes
        )
        return Plan("photos", "size", 0.05, shares, (), (), ())

    rebalance.require_same(plan(2), topology)
    with raises_code("plan_outdated", match="node b was at 127.0.0.1:9 and is at 127.0.0.1:2"):
        rebalance.require_same(plan(9), topology)
