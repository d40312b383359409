"""Registers and counters: how far apart, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.checks import generator
from shardctl.checks.generator import Held, ahead
from shardctl.ids.layout import Layout
from shardctl.topology.model import ShardId
from tests.fixtures.servers.postgres import local_node, local_topology

BITS, MASK = 40, (1 << 23) - 1


@pytest.mark.parametrize(
    ("register", "counter", "blocks"),
    [
        (None, None, 0),
        (None, 0, -1),
        (None, 1023, -1),
        (None, 1024, -2),
        (0 << BITS | 7, None, 0),
        (3 << BITS | 7, 3 * 1024 + 5, 0),
        (2 << BITS, 3 * 1024, -1),
        (4 << BITS, 3 * 1024, 1),
        (5 << BITS, None, 5),
        (MASK << BITS, (MASK + 1) << 10, -1),
        (0, (MASK << 10) + 3, 1),
        (0, ((MASK + 1) << 10) + 3, 0),
    ],
)
def test_blocks_are_counted_as_the_generator_counts_them(
    register: int | None, counter: int | None, blocks: int
) -> None:
    assert ahead(Layout(), Held(register, counter)) == blocks


def test_shards_are_grouped_and_one_block_behind_is_nothing() -> None:
    topology = local_topology(Path("/nowhere"), local_node(Path("/nowhere"), "a", 1, range(6)))
    held = {
        ShardId(0): Held(1 << BITS, 1030),
        ShardId(1): Held(0 << BITS, 1030),
        ShardId(2): Held(3 << BITS, 1030),
        ShardId(3): Held(0 << BITS, 5000),
        ShardId(4): Held(9 << BITS, 1030),
    }
    ahead_, behind = generator.judge_registers(topology, held)
    assert (ahead_.code, ahead_.shards) == ("register_ahead", (2, 4))
    assert "4095" in ahead_.hint
    assert (behind.code, behind.shards) == ("register_behind", (3,))
    assert "shardctl.open_block(3)" in behind.hint
