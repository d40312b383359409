"""Registers and counters: how far apart, and what is said of it."""

from __future__ import annotations

import pytest

from shardctl.checks.generator import Held, ahead
from shardctl.ids.layout import Layout

BITS, MASK = 40, (1 << 23) - 1


@pytest.mark.parametrize(
    ("register", "counter", "blocks"),
    [
        (None, 1023, -1),
        (None, 1024, -2),
        (0 << BITS | 7, None, 0),
        (2 << BITS, 3 * 1024, -1),
        (5 << BITS, None, 5),
        (MASK << BITS, (MASK + 1) << 10, -1),
        (0, ((MASK + 1) << 10) + 3, 0),
    ],
)
def test_blocks_are_counted_as_the_generator_counts_them(
    register: int | None, counter: int | None, blocks: int
) -> None:
    assert ahead(Layout(), Held(register, counter)) == blocks
