"""Fixtures for what breaks on purpose, and how much of it is tested."""

from __future__ import annotations

import itertools
import os

import pytest

EVERY_POINT = "SHARDCTL_EVERY_POINT"
"""The variable that lets all points be tested, and not a few of each test's."""
LONGEST_S = 1800
"""How long one test may take, which does what takes seconds at many points."""
THINNED = {"fault/test_move_network_": 1000, "fault/test_move_": 12}
"""Of how many points one is tested otherwise, by what a test's file begins with."""
BY_FILE = ("_network_", "_stream_pooler", "_stream_servers", "_stream_clients")
"""What names of files contain whose points are counted by file; those of others are by test."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("fault"):
            # Every wait has its own bound; a test of many points adds them up on a busy machine.
            item.add_marker(pytest.mark.timeout(LONGEST_S))
    if os.environ.get(EVERY_POINT):
        return
    seen: dict[str, itertools.count[int]] = {}
    left_out = [
        item
        for item in items
        if (thinned := _thinned(item.nodeid)) is not None
        and next(seen.setdefault(_counted(item.nodeid), itertools.count())) % thinned
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _thinned(test: str) -> int | None:
    return next((one_of for begin, one_of in THINNED.items() if begin in test), None)


def _counted(test: str) -> str:
    """Name what a test's point is one of."""
    return test.partition("::" if any(part in test for part in BY_FILE) else "[")[0]
